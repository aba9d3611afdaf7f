package api

import (
	"container/list"
	"sync"
)

// lru remembers the values used last, within bounds of number and of estimated bytes. It is safe for concurrent use.
type lru[K comparable, V any] struct {
	maxEntries, maxBytes int

	mu      sync.Mutex
	entries map[K]*list.Element
	// used has the entries in the order of their last use, the latest in front.
	used  list.List
	bytes int
}

type lruEntry[K comparable, V any] struct {
	key   K
	value V
	bytes int
}

func newLRU[K comparable, V any](maxEntries, maxBytes int) *lru[K, V] {
	return &lru[K, V]{maxEntries: maxEntries, maxBytes: maxBytes, entries: map[K]*list.Element{}}
}

// get is the value of the key.
func (l *lru[K, V]) get(key K) (value V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil {
		return value, false
	}
	l.used.MoveToFront(e)
	return e.Value.(*lruEntry[K, V]).value, true
}

// getOrAdd is the value of the key, which is the one given where there was none. bytes is what that one will take.
func (l *lru[K, V]) getOrAdd(key K, value V, bytes int) V {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[key]; e != nil {
		l.used.MoveToFront(e)
		return e.Value.(*lruEntry[K, V]).value
	}
	l.entries[key] = l.used.PushFront(&lruEntry[K, V]{key, value, bytes})
	l.bytes += bytes
	for len(l.entries) > l.maxEntries || l.bytes > l.maxBytes {
		oldest := l.used.Remove(l.used.Back()).(*lruEntry[K, V])
		delete(l.entries, oldest.key)
		l.bytes -= oldest.bytes
	}
	return value
}
