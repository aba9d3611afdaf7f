// Package difftest compares the replay guard with the thing that its contract was written for: the local message submission
// protocol of CIP-0137, as gouroboros speaks it. It has a module of its own, so that nothing of that is a dependency of the
// guard.
//
// The server's protocol has no replay protection: the same message inside its time to live reaches the submit callback
// again. The guard stands in that callback here. Random schedules of messages, connections and time go through real clients
// and servers over pipes, in a bubble with its own time; a second guard gets the same schedule by function calls. What the
// clients read on the wire, and how often the callback's own callback ran, must be the same.
//
//	go test ./... in this folder
package difftest
