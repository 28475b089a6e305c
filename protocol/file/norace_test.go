//go:build !race

package file

const raced = false
