package replayguard

import "container/heap"

// entry is a reservation in memory. It is in the list of its second of expiry.
type entry struct {
	id         ID
	key        Key
	holder     *client
	token      Token
	reservedAt int64
	outcome    Outcome

	second     *second
	prev, next *entry
}

// slot is an entry beside the second in which it expires. By it a duplicate is answered without a look at the entry, which
// among a million is seldom in the processor's cache.
type slot struct {
	*entry
	expiresAt int64
}

// second is the list of the entries that expire in one second.
type second struct {
	at    int64
	first *entry
	index int // in the heap
}

// expiries are entries by the second in which they expire, the earliest first.
type expiries struct {
	at       map[int64]*second
	earliest secondHeap
}

// add puts an entry that is in no list into the list of a second.
func (x *expiries) add(e *entry, at int64) {
	s := x.at[at]
	if s == nil {
		s = &second{at: at}
		x.at[at] = s
		heap.Push(&x.earliest, s)
	}
	e.second, e.prev, e.next = s, nil, s.first
	if s.first != nil {
		s.first.prev = e
	}
	s.first = e
}

// remove takes an entry out of its list, and the list away with its last entry.
func (x *expiries) remove(e *entry) {
	s := e.second
	if e.next != nil {
		e.next.prev = e.prev
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		s.first = e.next
	}
	e.second, e.prev, e.next = nil, nil, nil
	if s.first == nil {
		heap.Remove(&x.earliest, s.index)
		delete(x.at, s.at)
	}
}

// next is an entry of the earliest second, or nil.
func (x *expiries) next() *entry {
	if len(x.earliest) == 0 {
		return nil
	}
	return x.earliest[0].first
}

// secondHeap is a heap of lists, by their second.
type secondHeap []*second

func (s secondHeap) Len() int           { return len(s) }
func (s secondHeap) Less(i, j int) bool { return s[i].at < s[j].at }

func (s secondHeap) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *secondHeap) Push(v any) {
	added := v.(*second)
	added.index = len(*s)
	*s = append(*s, added)
}

func (s *secondHeap) Pop() any {
	last := len(*s) - 1
	removed := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return removed
}
