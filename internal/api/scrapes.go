package api

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// scrapes serves /metrics so that who asks for it much, or does not read it, only hurts itself.
//
// A page is made first, whole and in memory, and written then. Making one costs the process's time and the database's, so few are made at once: one
// for each caller, a handful in all, and others wait for their turn in the order in which they came. Writing one goes as fast as its client
// reads, so nobody waits for that.
//
// Pages that are being written are bounded in bytes, per caller and in all. Where one more is too much, the one that its client has not
// taken for longest goes, with its connection: of the caller's own, or of the caller that has the most. What such a client has not read it
// can ask for again.
type scrapes struct {
	// makes is what makes a page.
	makes  http.Handler
	bounds scrapeBounds
	making chan struct{}

	mu      sync.Mutex
	held    int
	callers map[netip.Addr]*scraper
}

// scrapeBounds are what scrapes may take.
type scrapeBounds struct {
	// atOnce is how many pages are made at once, wait how long a scrape waits until its own is.
	atOnce int
	wait   time.Duration
	// page, perCaller and all bound bytes: of one page, and of those being written. None is less than the one before.
	page, perCaller, all int
}

// defaultScrapeBounds: a scraper gives up after ten seconds, by Prometheus' default. A page has some 100 KB: labels have few values.
var defaultScrapeBounds = scrapeBounds{atOnce: 4, wait: 8 * time.Second, page: 4 << 20, perCaller: 8 << 20, all: 32 << 20}

// scraper is one caller's scrapes.
type scraper struct {
	// turn holds a token while a page is made for the caller.
	turn     chan struct{}
	requests int
	held     int
	pages    list.List // of *heldPage, that which is held for longest first
}

// heldPage is a page that is being written.
type heldPage struct {
	size int
	cut  func()
	// place is nil once the page counts no more.
	place *list.Element
}

func newScrapes(makes http.Handler, bounds scrapeBounds) *scrapes {
	return &scrapes{makes: makes, bounds: bounds, making: make(chan struct{}, bounds.atOnce), callers: map[netip.Addr]*scraper{}}
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var from netip.Addr
	cut := func() {}
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		from, cut = c.from, func() { c.Close() }
	}
	mine := s.enter(from)
	defer s.leave(from, mine)
	page := s.page(r, mine)
	if page == nil {
		plain(w, http.StatusServiceUnavailable, "too many scrapes at once\n")
		return
	}
	if page.tooLarge {
		plain(w, http.StatusInternalServerError, "the metrics have more than "+strconv.Itoa(s.bounds.page)+" bytes\n")
		return
	}
	defer s.hold(mine, page.body.Cap(), cut)()
	maps.Copy(w.Header(), page.header)
	w.Header().Set("Content-Length", strconv.Itoa(page.body.Len()))
	w.WriteHeader(page.status)
	w.Write(page.body.Bytes())
}

// page makes a page when it is the caller's turn; nil where that does not come in time.
func (s *scrapes) page(r *http.Request, mine *scraper) *page {
	ctx, cancel := context.WithTimeout(r.Context(), s.bounds.wait)
	defer cancel()
	for _, place := range []chan struct{}{mine.turn, s.making} {
		select {
		case place <- struct{}{}:
			defer func() { <-place }()
		case <-ctx.Done():
			return nil
		}
	}
	made := &page{header: http.Header{}, status: http.StatusOK, most: s.bounds.page}
	s.makes.ServeHTTP(made, r)
	return made
}

func (s *scrapes) enter(from netip.Addr) *scraper {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.callers[from]
	if mine == nil {
		mine = &scraper{turn: make(chan struct{}, 1)}
		s.callers[from] = mine
	}
	mine.requests++
	return mine
}

func (s *scrapes) leave(from netip.Addr, mine *scraper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mine.requests--; mine.requests == 0 {
		delete(s.callers, from)
	}
}

// hold counts a page until release, and cuts others where they are too much together.
func (s *scrapes) hold(mine *scraper, size int, cut func()) (release func()) {
	s.mu.Lock()
	var cuts []func()
	for mine.held > 0 && mine.held+size > s.bounds.perCaller {
		cuts = append(cuts, s.giveUp(mine))
	}
	for s.held > 0 && s.held+size > s.bounds.all {
		cuts = append(cuts, s.giveUp(s.heaviest()))
	}
	held := &heldPage{size: size, cut: cut}
	held.place = mine.pages.PushBack(held)
	mine.held += size
	s.held += size
	s.mu.Unlock()
	for _, cut := range cuts {
		cut()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(mine, held)
	}
}

// giveUp stops counting the page that a caller has held for longest. The caller of giveUp cuts it, without the lock.
func (s *scrapes) giveUp(of *scraper) (cut func()) {
	longest := of.pages.Front().Value.(*heldPage)
	s.forget(of, longest)
	return longest.cut
}

func (s *scrapes) forget(of *scraper, held *heldPage) {
	if held.place == nil {
		return
	}
	of.pages.Remove(held.place)
	held.place = nil
	of.held -= held.size
	s.held -= held.size
}

// heaviest is the caller whose pages have the most bytes.
func (s *scrapes) heaviest() (most *scraper) {
	for _, c := range s.callers {
		if most == nil || c.held > most.held {
			most = c
		}
	}
	return most
}

// page is an answer in memory.
type page struct {
	header   http.Header
	status   int
	begun    bool
	body     bytes.Buffer
	most     int
	tooLarge bool
}

var errPageTooLarge = errors.New("the page is too large")

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *page) WriteHeader(status int) {
	if !p.begun {
		p.begun, p.status = true, status
	}
}

// Write implements http.ResponseWriter.
func (p *page) Write(b []byte) (int, error) {
	p.begun = true
	if p.tooLarge || p.body.Len()+len(b) > p.most {
		p.tooLarge = true
		return 0, errPageTooLarge
	}
	return p.body.Write(b)
}
