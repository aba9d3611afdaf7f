// Package proctest runs the built program as processes in tests, as a supervisor does: with a configuration of its own, with signals, and
// with an end that is waited for.
//
// No process outlives the tests. Each is killed when its test ends, and on Linux by the kernel when the tests themselves are killed:
// what the kernel calls the death of a parent is that of the thread that started a process, and threads come and go, so one thread
// that lasts as long as the tests starts them all. TestMain ends it with Shutdown.
//
// A process that panicked or raced fails its test, whatever else the test looked at.
package proctest
