package replayguard

import "fmt"

// CheckInvariants compares the map, the lists, the heap and the counts of clients with each other.
func (m *Memory) CheckInvariants() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	listed, live := 0, map[*client]int{}
	for i, s := range m.expiries.earliest {
		switch {
		case s.index != i:
			return fmt.Errorf("second %d thinks that it is at %d of the heap, and is at %d", s.at, s.index, i)
		case m.expiries.at[s.at] != s:
			return fmt.Errorf("second %d is in the heap and not in the map", s.at)
		case s.first == nil:
			return fmt.Errorf("second %d has an empty list", s.at)
		case s.at < m.expiries.earliest[0].at:
			return fmt.Errorf("second %d is not the first of the heap", s.at)
		case s.at < m.horizon:
			return fmt.Errorf("second %d is before the horizon %d", s.at, m.horizon)
		}
		var prev *entry
		for e := s.first; e != nil; e = e.next {
			if e.prev != prev || e.second != s || m.entries[e.id] != (slot{e, s.at}) {
				return fmt.Errorf("entry %v of second %d is not linked as it should be", e.id, s.at)
			}
			prev = e
			listed++
			live[e.holder]++
		}
	}
	if len(m.expiries.at) != len(m.expiries.earliest) || listed != len(m.entries) {
		return fmt.Errorf("%d entries are listed of %d, %d seconds of %d", listed, len(m.entries), len(m.expiries.earliest), len(m.expiries.at))
	}
	if len(m.entries) > max(0, m.limits.MaxEntries) {
		return fmt.Errorf("%d entries, at most %d", len(m.entries), m.limits.MaxEntries)
	}
	for name, c := range m.clients {
		if c.name != name || c.live != live[c] {
			return fmt.Errorf("client %q has %d entries and counts %d", name, live[c], c.live)
		}
		delete(live, c)
	}
	if len(live) != 0 {
		return fmt.Errorf("%d clients have entries and are forgotten", len(live))
	}
	return nil
}
