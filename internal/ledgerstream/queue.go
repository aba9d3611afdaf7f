package ledgerstream

import (
	"context"
	"sync"
)

// item is one thing that a stream brought: a message, or its end.
type item struct {
	message
	// end is set on the last item only: why the stream ended; io.EOF where the participant ended it with OK.
	end error
}

// queue passes items from the goroutine that reads a stream to the one that applies them. It is bounded by count and by bytes,
// so that a slow sink slows the participant down and memory stays small; one item always fits, however large.
type queue struct {
	maxItems, maxBytes int

	// ready holds a token while there is something to take.
	ready chan struct{}
	// room holds a token after something was taken.
	room chan struct{}

	mu    sync.Mutex
	items []item
	bytes int
}

func newQueue(maxItems, maxBytes int) *queue {
	return &queue{
		maxItems: maxItems, maxBytes: maxBytes,
		ready: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// put appends an item, waiting for room; it returns false when the context ends first. There is one putter.
func (q *queue) put(ctx context.Context, it item) bool {
	for !q.tryPut(it) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
	signal(q.ready)
	return true
}

func (q *queue) tryPut(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) > 0 && it.end == nil && (len(q.items) >= q.maxItems || q.bytes+it.size > q.maxBytes) {
		return false
	}
	q.items = append(q.items, it)
	q.bytes += it.size
	return true
}

// take removes everything that is there.
func (q *queue) take() []item {
	q.mu.Lock()
	items := q.items
	q.items, q.bytes = nil, 0
	q.mu.Unlock()
	signal(q.room)
	return items
}

// over reports whether the stream's end is among what there is to take.
func (q *queue) over() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) > 0 && q.items[len(q.items)-1].end != nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
