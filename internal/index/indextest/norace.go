//go:build !race

package indextest

const raced = false
