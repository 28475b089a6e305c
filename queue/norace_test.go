//go:build !race

package queue

const raced = false
