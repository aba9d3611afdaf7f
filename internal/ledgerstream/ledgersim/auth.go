package ledgersim

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Authorization by JWTs with a shared secret, as a participant with unsafe-jwt-hmac-256 does it. What callers see of a refusal is
// redacted: Unauthenticated for every fault of the token, PermissionDenied for every lack of a right.

// AuthOptions turn on authorization.
type AuthOptions struct {
	// Secret signs tokens (HMAC-SHA256).
	Secret []byte
	// MaxLifetime is how long a token may still be valid; 5 minutes if 0.
	MaxLifetime time.Duration
	// RightsPoll is how often an open stream looks whether its user's rights have changed; 5 seconds if 0.
	RightsPoll time.Duration
}

const (
	defaultTokenLifetime = 5 * time.Minute
	defaultRightsPoll    = 5 * time.Second
	ledgerScope          = "daml_ledger_api"
	audiencePrefix       = "https://daml.com/jwt/aud/participant/"
	// AdminUser is the user that is there from the start; it is a ParticipantAdmin and may not read anything.
	AdminUser = "participant_admin"
)

// right is one right of a user; party is empty for rights without one.
type right struct {
	kind  rightKind
	party string
}

type rightKind uint8

const (
	participantAdmin rightKind = iota + 1
	canActAs
	canReadAs
	canReadAsAnyParty
)

// user is a user of the participant. It is replaced and never changed.
type user struct {
	id           string
	primaryParty string
	rights       []right
}

func (u *user) has(r right) bool { return slices.Contains(u.rights, r) }

func (u *user) mayRead(party string) bool {
	return u.has(right{canReadAsAnyParty, ""}) || u.has(right{canReadAs, party}) || u.has(right{canActAs, party})
}

// with is the user with other rights, sorted.
func (u *user) with(rights []right) *user {
	next := *u
	next.rights = slices.Clone(rights)
	slices.SortFunc(next.rights, func(a, b right) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.party, b.party)) })
	next.rights = slices.Compact(next.rights)
	return &next
}

// claims are a token's, as far as they are looked at.
type claims struct {
	Subject  string `json:"sub"`
	Expires  int64  `json:"exp,omitempty"`
	IssuedAt int64  `json:"iat,omitempty"`
	Scope    string `json:"scope,omitempty"`
	Audience any    `json:"aud,omitempty"`
}

// caller is who a call comes from. A nil caller is anyone: authorization is off, or the method needs none.
type caller struct {
	userID   string
	expires  time.Time
	issuedAt time.Time
	rights   []right
}

type callerKey struct{}

func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller)
	return c
}

// Token makes a token of the user that is valid for so long from now.
func (s *Sim) Token(userID string, valid time.Duration) string {
	now := s.options.Clock.Now()
	return s.SignToken(map[string]any{"sub": userID, "exp": now.Add(valid).Unix(), "iat": now.UnixMilli(), "scope": ledgerScope})
}

// SignToken makes a token of any claims.
func (s *Sim) SignToken(claims map[string]any) string {
	var secret []byte
	if s.options.Auth != nil {
		secret = s.options.Auth.Secret
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return ""
	}
	part := base64.RawURLEncoding.EncodeToString
	signed := part([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + part(body)
	return signed + "." + part(signature(secret, signed))
}

func signature(secret []byte, signed string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(signed))
	return mac.Sum(nil)
}

// ExpireTokens makes all tokens issued by now expired. Open streams notice when they are about to deliver something.
func (s *Sim) ExpireTokens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = s.options.Clock.Now()
}

// SetRights replaces a user's rights to read and act; the user is made if there is none.
func (s *Sim) SetRights(userID string, readAs, actAs []string) {
	s.change(func(l *state, _ time.Time) {
		var rights []right
		for _, p := range readAs {
			rights = append(rights, right{canReadAs, p})
		}
		for _, p := range actAs {
			rights = append(rights, right{canActAs, p})
		}
		before := l.users[userID]
		if before == nil {
			before = &user{id: userID}
		}
		l.users[userID] = before.with(rights)
	})
}

func (s *Sim) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := s.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Sim) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := s.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, streamOf{stream, ctx})
}

type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamOf) Context() context.Context { return s.ctx }

// admit is what every call passes before it is looked at: faults, then authentication.
func (s *Sim) admit(ctx context.Context, method string) (context.Context, error) {
	if err := s.waitIfHung(ctx, method); err != nil {
		return nil, err
	}
	if err := s.waitDelay(ctx); err != nil {
		return nil, err
	}
	if err := s.nextFailure(method); err != nil {
		return nil, err
	}
	if s.options.Auth == nil || isOpen(method) {
		return ctx, nil
	}
	c, r := s.authenticate(ctx)
	if r != nil {
		return nil, s.asStatus(r, nil)
	}
	return context.WithValue(ctx, callerKey{}, c), nil
}

// isOpen reports whether a method needs no token.
func isOpen(method string) bool {
	return method == v2.VersionService_GetLedgerApiVersion_FullMethodName || strings.HasPrefix(method, "/grpc.")
}

func (s *Sim) authenticate(ctx context.Context) (*caller, *rejection) {
	md, _ := metadata.FromIncomingContext(ctx)
	c, err := s.verify(md.Get("authorization"))
	if err != nil {
		return nil, reject(unauthenticated, "UNAUTHENTICATED", "%s", err)
	}
	var known *user
	var participant string
	s.read(func(l *state) { known, participant = l.users[c.Subject], l.participant })
	if known == nil || !c.forParticipant(participant) {
		return nil, reject(unauthorized, "PERMISSION_DENIED", "no such user, or a token for another participant")
	}
	return &caller{userID: known.id, expires: time.Unix(c.Expires, 0), issuedAt: time.UnixMilli(c.IssuedAt), rights: known.rights}, nil
}

// verify checks a token by itself.
func (s *Sim) verify(headers []string) (claims, error) {
	var c claims
	if len(headers) != 1 {
		return c, errors.New("no token")
	}
	token, ok := strings.CutPrefix(headers[0], "Bearer ")
	if !ok {
		return c, errors.New("no bearer token")
	}
	signed, mac, ok := cutLastDot(token)
	if !ok {
		return c, errors.New("no JWT")
	}
	given, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil || !hmac.Equal(given, signature(s.options.Auth.Secret, signed)) {
		return c, errors.New("bad signature")
	}
	_, body, _ := strings.Cut(signed, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return c, fmt.Errorf("bad claims: %w", err)
	}
	if err := json.Unmarshal(decoded, &c); err != nil {
		return c, fmt.Errorf("bad claims: %w", err)
	}
	return c, s.inTime(c)
}

func (s *Sim) inTime(c claims) error {
	longest := cmp.Or(s.options.Auth.MaxLifetime, defaultTokenLifetime)
	now := s.options.Clock.Now()
	var cutoff time.Time
	s.read(func(*state) { cutoff = s.expired })
	switch {
	case c.Subject == "" || c.Expires == 0:
		return errors.New("no user or no expiry")
	case !now.Before(time.Unix(c.Expires, 0)) || !cutoff.IsZero() && !time.UnixMilli(c.IssuedAt).After(cutoff):
		return errors.New("expired")
	case time.Unix(c.Expires, 0).After(now.Add(longest)):
		return errors.New("valid for too long")
	case c.audience() == "" && !slices.Contains(strings.Fields(c.Scope), ledgerScope):
		return errors.New("neither audience nor scope")
	default:
		return nil
	}
}

// audience is the single audience that names a participant, "" if there is none.
func (c claims) audience() string {
	switch aud := c.Audience.(type) {
	case string:
		return strings.TrimPrefix(aud, audiencePrefix)
	case []any:
		if len(aud) == 1 {
			text, _ := aud[0].(string)
			return strings.TrimPrefix(text, audiencePrefix)
		}
	}
	return ""
}

func (c claims) forParticipant(id string) bool { return c.audience() == "" || c.audience() == id }

func cutLastDot(s string) (before, after string, ok bool) {
	at := strings.LastIndexByte(s, '.')
	if at < 0 {
		return "", "", false
	}
	return s[:at], s[at+1:], true
}

// permissionDenied is what every lack of a right looks like.
func permissionDenied() *rejection { return reject(unauthorized, "PERMISSION_DENIED", "missing right") }

// mayRead checks that the caller may read what a format asks for.
func (c *caller) mayRead(formats ...*eventFormat) *rejection {
	if c == nil {
		return nil
	}
	u := &user{rights: c.rights}
	for _, f := range formats {
		if f == nil {
			continue
		}
		if f.any != nil && !u.has(right{canReadAsAnyParty, ""}) {
			return permissionDenied()
		}
		for _, p := range f.parties() {
			if !u.mayRead(p) {
				return permissionDenied()
			}
		}
	}
	return nil
}

// mayFollow is the same for a format of updates: topology of all parties needs the right to read as any.
func (c *caller) mayFollow(f *updateFormat) *rejection {
	if c == nil {
		return nil
	}
	if f.topology {
		u := &user{rights: c.rights}
		if len(f.topologyParties) == 0 && !u.has(right{canReadAsAnyParty, ""}) {
			return permissionDenied()
		}
		for _, p := range f.topologyParties {
			if !u.mayRead(p) {
				return permissionDenied()
			}
		}
	}
	return c.mayRead(f.transactions, f.reassignments)
}

// mayAct checks a submission's parties and its user.
func (c *caller) mayAct(userID string, actAs, readAs []string) *rejection {
	if c == nil {
		return nil
	}
	u := &user{rights: c.rights}
	for _, p := range actAs {
		if !u.has(right{canActAs, p}) {
			return permissionDenied()
		}
	}
	for _, p := range readAs {
		if !u.mayRead(p) {
			return permissionDenied()
		}
	}
	if userID != c.userID {
		return permissionDenied()
	}
	return nil
}

// mayAdminister checks for a participant's administrator.
func (c *caller) mayAdminister() *rejection {
	if c == nil || slices.Contains(c.rights, right{participantAdmin, ""}) {
		return nil
	}
	return permissionDenied()
}

// stale reports what must end an open stream of the caller: nothing, or its user's rights are not what they were.
func (s *Sim) stale(c *caller) *rejection {
	if c == nil {
		return nil
	}
	var now *user
	s.read(func(l *state) { now = l.users[c.userID] })
	if now != nil && slices.Equal(now.rights, c.rights) {
		return nil
	}
	r := reject(contention, "STALE_STREAM_AUTHORIZATION", "Stale stream authorization. Retry quickly.").after(0)
	r.withoutRequest = true
	return r
}

// outlived reports that a stream's token has expired; it is asked when something is about to be delivered.
func (s *Sim) outlived(c *caller) *rejection {
	if c == nil {
		return nil
	}
	var cutoff time.Time
	s.read(func(*state) { cutoff = s.expired })
	now := s.options.Clock.Now()
	if now.Before(c.expires) && (cutoff.IsZero() || c.issuedAt.After(cutoff)) {
		return nil
	}
	r := reject(contention, "ACCESS_TOKEN_EXPIRED", "Claims were valid until %s, current time is %s",
		c.expires.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339Nano)).after(time.Second)
	r.withoutRequest = true
	return r
}
