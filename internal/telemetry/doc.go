// Package telemetry sets up metrics and logs, once, for the whole process.
//
// Metrics live in a registry of their own (no library's metrics slip in), one struct per room: Stream, Index, API, Guard. A room does not
// know Prometheus: it declares the few calls that it makes, and the struct here has them. Two kinds of metrics:
//
//   - Events are counted where they happen, by a method.
//   - Levels (offsets, ages, sizes) are sampled when Prometheus asks, from a function that the room gave to Watch. An age is
//     then right at the moment of the scrape, also when everything else hangs.
//
// Every label has a bounded set of values, whatever comes from outside: a label never holds a party, a contract id, a digest or
// a text that somebody sent. Where the set is not ours (a participant's error reasons) it is cut at maxValues by "other".
// Names begin with disclosured_, are in base units (seconds, bytes) and end in _total for counters.
package telemetry
