package api

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// The bounds of requests.
const (
	// MaxBatchItems is how many items a batch may have.
	MaxBatchItems = 1000
	// MaxListedContractIDs is how many contract ids known_contract_ids and not_contract_ids may each have.
	MaxListedContractIDs = 100
	// MaxPageSize and DefaultPageSize are those of ListScopes.
	MaxPageSize, DefaultPageSize = 1000, 100
	// MaxFindings and DefaultFindings are how many findings an audit gives at most, and where no limit is set.
	MaxFindings, DefaultFindings = 10_000, 100
	// MaxOffset is the greatest offset that is believed: 2^53 − 1. A ledger that takes a million offsets a second gets there in
	// 285 years, and JSON readers that keep numbers as doubles are exact up to it.
	MaxOffset = 1<<53 - 1

	// Of the Ledger API (value.proto, "Party" and "LedgerString"): at most 255 characters of [A-Za-z0-9:\-_ ].
	maxPartyBytes = 255
	// Of the Ledger API: a package name has the characters [A-Za-z0-9\-_].
	maxPackageNameBytes = 255
	// Of the model: a namespace has at most 128 characters.
	maxNamespaceRunes = 128
	// Update ids are hex of a multihash, 68 digits as Canton makes them; the Ledger API's bound on any id is 255.
	maxUpdateIDBytes = 255
	maxVAABytes      = wormhole.MaxVAATextBytes / 2
)

// checks collects what is wrong with a request, field by field.
type checks struct{ violations []Violation }

func (c *checks) add(field, format string, args ...any) {
	c.violations = append(c.violations, Violation{field, fmt.Sprintf(format, args...)})
}

// err is INVALID_FIELD with every violation, or nil. The first is the one named by message and metadata.
func (c *checks) err() error {
	if len(c.violations) == 0 {
		return nil
	}
	return invalid(c.violations...)
}

func invalid(violations ...Violation) *Error {
	first := violations[0]
	e := failure(InvalidField, first.Field+": "+first.Rule)
	e.Violations = violations
	return e.with("field", first.Field).with("rule", first.Rule)
}

// digest reads 64 hex digits, in any case, with or without 0x.
func (c *checks) digest(field, text string) wormhole.Digest {
	d, err := wormhole.ParseDigest(text)
	if err != nil {
		c.add(field, "must be a digest, 64 hex digits: %s", trimSubject(err))
	}
	return d
}

func (c *checks) party(field, text string, required bool) string {
	switch {
	case text == "" && !required:
	case text == "":
		c.add(field, "is required: a party id")
	case len(text) > maxPartyBytes:
		c.add(field, "must be a party id: at most %d characters, got %d", maxPartyBytes, len(text))
	default:
		if at := outside(text, isPartyChar); at >= 0 {
			c.add(field, "must be a party id, of [A-Za-z0-9:_ -]: character %d is none of these", at+1)
		}
	}
	return text
}

func (c *checks) packageName(field, text string) string {
	switch {
	case text == "":
	case len(text) > maxPackageNameBytes:
		c.add(field, "must be a package name: at most %d characters, got %d", maxPackageNameBytes, len(text))
	default:
		// A template id ("#name:Module:Entity" or "hash:Module:Entity") is a likely mistake.
		if at := outside(text, func(b byte) bool { return isPartyChar(b) && b != ':' && b != ' ' }); at >= 0 {
			c.add(field, "must be a package name as wormhole-core, of [A-Za-z0-9_-]: character %d is none of these", at+1)
		}
	}
	return text
}

func (c *checks) namespace(field, text string) string {
	if n := utf8.RuneCountInString(text); n > maxNamespaceRunes {
		c.add(field, "must have at most %d characters, got %d", maxNamespaceRunes, n)
	}
	return text
}

// contractID reads a contract id in any case; the result is in lowercase.
func (c *checks) contractID(field, text string, required bool) string {
	switch {
	case text == "" && !required:
		return ""
	case text == "":
		c.add(field, "is required: a contract id")
		return ""
	}
	id, err := contractblob.ParseContractID(strings.ToLower(text))
	if err != nil {
		c.add(field, "must be a contract id in hex: %s", trimSubject(err))
	}
	return id.String()
}

func (c *checks) contractIDs(field string, texts []string) []string {
	if len(texts) > MaxListedContractIDs {
		c.add(field, "must have at most %d contract ids, got %d", MaxListedContractIDs, len(texts))
		return nil
	}
	ids := make([]string, len(texts))
	for i, text := range texts {
		ids[i] = c.contractID(fmt.Sprintf("%s[%d]", field, i), text, true)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// updateID reads an update id in any case; the result is in lowercase.
func (c *checks) updateID(field, text string) string {
	switch {
	case text == "":
	case len(text) > maxUpdateIDBytes:
		c.add(field, "must be an update id: at most %d hex digits, got %d", maxUpdateIDBytes, len(text))
	case len(text)%2 != 0:
		c.add(field, "must be an update id in hex: %d digits, an odd number", len(text))
	default:
		if at := outside(text, isHexDigit); at >= 0 {
			c.add(field, "must be an update id in hex: character %d is not a hex digit", at+1)
		}
	}
	return strings.ToLower(text)
}

func (c *checks) offset(field string, offset int64) int64 {
	switch {
	case offset < 0:
		c.add(field, "must not be negative")
	case offset > MaxOffset:
		c.add(field, "must be at most %d", int64(MaxOffset))
	}
	return offset
}

// vaaText reads a VAA from text. A text that is not bytes at all is wrong; bytes that are no VAA get the ledger's verdict.
func (c *checks) vaaText(field, text string) subject {
	encoded, err := wormhole.DecodeVAAText(text)
	if err != nil {
		c.add(field, "must be a VAA in hex or base64: %s", trimSubject(err))
		return subject{}
	}
	return c.vaaBytes(field, encoded)
}

func (c *checks) vaaBytes(field string, encoded []byte) subject {
	switch {
	case len(encoded) == 0:
		c.add(field, "must be a VAA: it is empty")
		return subject{}
	case len(encoded) > maxVAABytes:
		c.add(field, "must be a VAA: at most %d bytes, got %d", maxVAABytes, len(encoded))
		return subject{}
	}
	sub := subject{hash: sha256.Sum256(encoded)}
	vaa, err := wormhole.ParseVAA(encoded)
	if sub.fault = wormhole.RuleOf(err); err != nil && sub.fault == nil {
		c.add(field, "must be a VAA: %s", trimSubject(err))
	}
	if vaa != nil {
		sub.vaa, sub.digest = vaa, vaa.Digest()
	}
	return sub
}

// bounded reads a size where 0 means the default.
func (c *checks) bounded(field string, n int32, most, otherwise int) int {
	switch {
	case n < 0:
		c.add(field, "must not be negative")
	case int(n) > most:
		c.add(field, "must be at most %d, got %d", most, n)
	case n == 0:
		return otherwise
	}
	return int(n)
}

// scope reads a selector. Where it is nil and not required, the result is nil.
func (c *checks) scope(field string, sel *disclosurev1.ScopeSelector, required bool) *index.ScopeSelector {
	if sel == nil {
		if required {
			c.add(field+".consumer", "is required: a party id")
		}
		return nil
	}
	selector := &index.ScopeSelector{
		Consumer:    c.party(field+".consumer", sel.GetConsumer(), true),
		Operator:    c.party(field+".operator", sel.GetOperator(), false),
		PackageName: c.packageName(field+".package_name", sel.GetPackageName()),
	}
	switch choice := sel.GetNamespaceChoice().(type) {
	case *disclosurev1.ScopeSelector_Namespace:
		namespace := c.namespace(field+".namespace", choice.Namespace)
		selector.Namespace = &namespace
	case *disclosurev1.ScopeSelector_WithoutNamespace:
		if !choice.WithoutNamespace {
			c.add(field+".without_namespace", "must be true where it is set; leave it out to match any namespace")
		}
		selector.NamespaceAbsent = true
	}
	return selector
}

// readOptions are ReadOptions, checked.
type readOptions struct {
	afterUpdateID string
	minOffset     int64
	participantID string
	// known and not are sorted.
	known, not []string
	allowStale bool
	// wait is nil where the caller left it to the server.
	wait *time.Duration
}

func (c *checks) read(field string, opts *disclosurev1.ReadOptions) readOptions {
	read := readOptions{
		afterUpdateID: c.updateID(field+".after_update_id", opts.GetAfterUpdateId()),
		minOffset:     c.offset(field+".min_offset", opts.GetMinOffset()),
		participantID: c.party(field+".participant_id", opts.GetParticipantId(), false),
		known:         c.contractIDs(field+".known_contract_ids", opts.GetKnownContractIds()),
		not:           c.contractIDs(field+".not_contract_ids", opts.GetNotContractIds()),
		allowStale:    opts.GetAllowStale(),
	}
	if read.minOffset > 0 && read.participantID == "" {
		c.add(field+".participant_id", "is required with min_offset: the participant whose offset it is")
	}
	if opts.GetWait() != nil {
		switch err := opts.GetWait().CheckValid(); {
		case err != nil:
			c.add(field+".wait", "must be a valid duration")
		case opts.GetWait().AsDuration() < 0:
			c.add(field+".wait", "must not be negative")
		default:
			wait := opts.GetWait().AsDuration()
			read.wait = &wait
		}
	}
	return read
}

// prepareQuery is a PrepareRedeemRequest, checked, without its read options.
type prepareQuery struct {
	selector index.ScopeSelector
	subject
	coreStateID string
}

func (c *checks) prepare(field string, req *disclosurev1.PrepareRedeemRequest) prepareQuery {
	var q prepareQuery
	if selector := c.scope(field+"scope", req.GetScope(), true); selector != nil {
		q.selector = *selector
	}
	switch asked := req.GetSubject().(type) {
	case *disclosurev1.PrepareRedeemRequest_Vaa:
		q.subject = c.vaaText(field+"vaa", asked.Vaa)
	case *disclosurev1.PrepareRedeemRequest_VaaBytes:
		q.subject = c.vaaBytes(field+"vaa_bytes", asked.VaaBytes)
	case *disclosurev1.PrepareRedeemRequest_Digest:
		q.digest = c.digest(field+"digest", asked.Digest)
	default:
		c.add(field+"subject", "one of vaa, vaa_bytes and digest is required")
	}
	q.coreStateID = c.contractID(field+"core_state_contract_id", req.GetCoreStateContractId(), false)
	return q
}

// pageToken is a place in a list of scopes: the view that the list is of and how far it was given. Its text is opaque to
// callers, and anything but a text that we made is INVALID_FIELD.
type pageToken struct {
	view pageView
	next int
}

func (t pageToken) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "1 %x %x %d %d", t.view.process, t.view.filter, t.view.serial, t.next))
}

func (c *checks) pageToken(field, text string) (pageToken, bool) {
	if text == "" {
		return pageToken{}, false
	}
	const rule = "must be a next_page_token of an answer before, unchanged"
	if len(text) > 256 {
		c.add(field, rule)
		return pageToken{}, false
	}
	plain, err := base64.RawURLEncoding.Strict().DecodeString(text)
	var token pageToken
	if err == nil {
		_, err = fmt.Sscanf(string(plain), "1 %x %x %d %d", &token.view.process, &token.view.filter, &token.view.serial, &token.next)
	}
	if err != nil || token.String() != text || token.next <= 0 || token.next > math.MaxInt32 {
		c.add(field, rule)
		return pageToken{}, false
	}
	return token, true
}

// trimSubject takes the leading "digest: " or the like from an error's text: the field's name says it already.
func trimSubject(err error) string {
	text := err.Error()
	if head, rest, ok := strings.Cut(text, ": "); ok && !strings.Contains(head, " ") || head == "contract id" {
		return rest
	}
	return text
}

// outside is the place of the first byte that is not of the class, or −1.
func outside(text string, class func(byte) bool) int {
	for i := range len(text) {
		if !class(text[i]) {
			return i
		}
	}
	return -1
}

func isPartyChar(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == ':' || b == '-' || b == '_' || b == ' '
}

func isHexDigit(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}
