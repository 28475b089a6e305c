// Package block is the waist of Platter: every byte that any export, tool or
// library user moves passes a Child, the edge between a user of a node and the
// node. A Node is what a driver implements; a Child is where requests are
// checked, tracked, padded, bounced and split, so that a driver sees only
// requests it can serve as they stand.
//
// The package is the standard library and internal packages only; it knows no
// driver, no export and no kernel interface.
package block
