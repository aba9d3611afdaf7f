//go:build !unix

package main

// descriptorLimit is unknown where a process has no limit of its own.
func descriptorLimit() (limit int, known bool) { return 0, false }
