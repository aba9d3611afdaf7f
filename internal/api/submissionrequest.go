package api

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
	"github.com/disclosured/disclosured/replayguard"
)

const (
	// maxIdempotencyKeyBytes bounds a key; its hash is what is kept.
	maxIdempotencyKeyBytes = 256
	// anonymous is the client of connections without credentials, where one is allowed. No certificate's name is equal: they have
	// a "=".
	anonymous = "anonymous"
)

// client is whom the connection's credentials name, or why there can't be reservations.
func (s *submissions) client(ctx context.Context) (string, error) {
	if s.guard == nil {
		return "", failure(SubmissionsOff, "the submission service is off").with("why", "disabled")
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			return clientName(info.State.VerifiedChains[0][0]), nil
		}
	}
	if s.cfg.Guard.AllowAnonymous {
		return anonymous, nil
	}
	return "", failure(SubmissionsOff, "the submission service is off for connections without a client certificate").with("why", "no_client_certificate")
}

// clientName is a verified certificate's name: its subject, so that a renewed certificate is the same client; where it has none, as in
// SPIFFE, its first URI or DNS name; its key's hash where it has no name at all. Authorities that the server trusts are trusted not to give
// one name to two clients. A name that is too long, or not printable, counts by its hash.
func clientName(cert *x509.Certificate) string {
	name := cert.Subject.String()
	switch {
	case name != "":
	case len(cert.URIs) > 0:
		name = "URI=" + cert.URIs[0].String()
	case len(cert.DNSNames) > 0:
		name = "DNS=" + cert.DNSNames[0]
	default:
		return hashedName("SPKI-SHA256=", cert.RawSubjectPublicKeyInfo)
	}
	if len(name) > replayguard.MaxClientBytes || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return hashedName("SHA256=", []byte(name))
	}
	return name
}

func hashedName(kind string, of []byte) string {
	sum := sha256.Sum256(of)
	return kind + hex.EncodeToString(sum[:])
}

// reservationQuery is a ReserveRequest, checked, without its read options.
type reservationQuery struct {
	prepareQuery
	expiresAt int64
	key       replayguard.Key
	prepare   bool
}

// bare reports whether a digest is asked about and no VAA.
func (q *reservationQuery) bare() bool { return q.vaa == nil && q.fault == nil }

func (c *checks) reserve(req *disclosurev1.ReserveRequest) reservationQuery {
	prepare := &disclosurev1.PrepareRedeemRequest{Scope: req.GetScope(), CoreStateContractId: req.GetCoreStateContractId()}
	switch asked := req.GetSubject().(type) {
	case *disclosurev1.ReserveRequest_Vaa:
		prepare.Subject = &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: asked.Vaa}
	case *disclosurev1.ReserveRequest_VaaBytes:
		prepare.Subject = &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: asked.VaaBytes}
	case *disclosurev1.ReserveRequest_Digest:
		prepare.Subject = &disclosurev1.PrepareRedeemRequest_Digest{Digest: asked.Digest}
	}
	q := reservationQuery{prepareQuery: c.prepare("", prepare), prepare: req.GetPrepare()}
	q.expiresAt = c.expiry("expires_at", req.GetExpiresAt())
	if n := len(req.GetIdempotencyKey()); n > maxIdempotencyKeyBytes {
		c.add("idempotency_key", "must have at most %d bytes, got %d", maxIdempotencyKeyBytes, n)
	}
	q.key = replayguard.NewKey(req.GetIdempotencyKey())
	return q
}

// expiry reads seconds since 1970. Whether the time is acceptable is the guard's to say, for every number of seconds that there is.
func (c *checks) expiry(field string, at *timestamppb.Timestamp) int64 {
	switch {
	case at == nil:
		c.add(field, "is required: until when to reserve")
	case at.GetNanos() < 0 || at.GetNanos() >= 1e9:
		c.add(field, "must have a fraction of less than a second, and not a negative one")
	}
	return at.GetSeconds()
}

// outcome reads what a reservation is settled with.
func (c *checks) outcome(field string, outcome disclosurev1.SettleOutcome) replayguard.Outcome {
	switch outcome {
	case disclosurev1.SettleOutcome_SETTLE_OUTCOME_COMMITTED:
		return replayguard.Committed
	case disclosurev1.SettleOutcome_SETTLE_OUTCOME_CONSUMED:
		return replayguard.Consumed
	}
	c.add(field, "must be SETTLE_OUTCOME_COMMITTED or SETTLE_OUTCOME_CONSUMED; leave a reservation whose outcome is unknown to its expiry")
	return replayguard.Open
}

func settledAs(outcome replayguard.Outcome) disclosurev1.SettleOutcome {
	switch outcome {
	case replayguard.Committed:
		return disclosurev1.SettleOutcome_SETTLE_OUTCOME_COMMITTED
	case replayguard.Consumed:
		return disclosurev1.SettleOutcome_SETTLE_OUTCOME_CONSUMED
	}
	return disclosurev1.SettleOutcome_SETTLE_OUTCOME_UNSPECIFIED
}

// token is a reservation's name for its holder. It is no secret: a store goes by the client too.
type token struct {
	id      replayguard.ID
	fencing replayguard.Token
}

func (t token) String() string { return fmt.Sprintf("%s.%d", t.id, int64(t.fencing)) }

func (t token) claim(client string) replayguard.Claim {
	return replayguard.Claim{Client: client, ID: t.id, Token: t.fencing}
}

// token reads what String wrote, and nothing else.
func (c *checks) token(field, text string) (t token) {
	const rule = "must be a token of a ReserveResponse, unchanged"
	digits, number, _ := strings.Cut(text, ".")
	if len(digits) != hex.EncodedLen(len(t.id)) {
		c.add(field, rule)
		return t
	}
	_, err := hex.Decode(t.id[:], []byte(digits))
	fencing, numberErr := strconv.ParseInt(number, 10, 64)
	t.fencing = replayguard.Token(fencing)
	if err != nil || numberErr != nil || fencing <= 0 || t.String() != text {
		c.add(field, rule)
	}
	return t
}
