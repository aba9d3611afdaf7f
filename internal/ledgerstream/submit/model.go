package submit

import (
	"context"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The example integrator's package and templates: an app that redeems VAAs through the core bridge.
const IntegratorPackage = "example-integrator"

var (
	// IntegratorTemplate is the app's own contract.
	IntegratorTemplate = damlvalue.TypeName{Module: "Example.Integrator", Entity: "ExampleIntegrator"}
	// ReceiptTemplate is what a redeem leaves with the redeemer.
	ReceiptTemplate = damlvalue.TypeName{Module: "Example.Integrator", Entity: "RedeemReceipt"}
)

// Integrator is the payload of ExampleIntegrator: it takes VAAs of one emitter on one chain, with Manager as the consumer.
type Integrator struct {
	Manager, Operator string
	// Users see the contract; anyone else needs it disclosed.
	Users     []string
	PeerChain int64
	// PeerAddress is 64 hex digits.
	PeerAddress string
}

// CreateIntegrator makes the app's contract. The manager signs.
func CreateIntegrator(i Integrator) Command {
	users := damlvalue.List{}
	for _, u := range i.Users {
		users = append(users, damlvalue.Party(u))
	}
	return CreateRecord(IntegratorTemplate, IntegratorPackage, fields(field("manager", damlvalue.Party(i.Manager)), field("operator", damlvalue.Party(i.Operator)), field("users", users), field("peerChain", damlvalue.Int(i.PeerChain)), field("peerAddress", damlvalue.Text(i.PeerAddress))))
}

// Redemption is what ExampleIntegrator.Redeem takes.
type Redemption struct {
	// Integrator, CoreState and ReplayNode are contract ids.
	Integrator, CoreState, ReplayNode string
	Redeemer                          string
	// EncodedVAA is in lowercase hex.
	EncodedVAA string
	PubKeys    []wormhole.PubKey
}

// Redeem redeems a VAA. The redeemer controls.
func Redeem(r Redemption) Command {
	return Exercise(IntegratorTemplate, IntegratorPackage, r.Integrator, "Redeem", fields(field("redeemer", damlvalue.Party(r.Redeemer)), field("coreStateCid", damlvalue.ContractID(r.CoreState)), field("replayNodeCid", damlvalue.ContractID(r.ReplayNode)), field("encodedVAA", damlvalue.Text(r.EncodedVAA)), field("pubKeys", pubKeys(r.PubKeys))))
}

// ConsumeDigest consumes a digest on a node. The consumer controls. The digest is sent as it is, well formed or not.
func ConsumeDigest(node, digest string) Command {
	return Exercise(wormhole.ReplayNodeTemplate, wormhole.PackageName, node, "ConsumeDigest", fields(field("digest", damlvalue.Text(digest))))
}

// VerifyAndConsume verifies a VAA and consumes its digest. The consumer controls.
func VerifyAndConsume(coreState, consumer, node, encodedVAA string, keys []wormhole.PubKey) Command {
	return Exercise(wormhole.CoreStateTemplate, wormhole.PackageName, coreState, "VerifyAndConsumeVAA", fields(field("encodedVAA", damlvalue.Text(encodedVAA)), field("pubKeys", pubKeys(keys)), field("consumer", damlvalue.Party(consumer)), field("replayNodeCid", damlvalue.ContractID(node))))
}

// SubmitGovernance carries a governance VAA out. The operator controls.
func SubmitGovernance(coreState, encodedVAA string, keys []wormhole.PubKey) Command {
	return Exercise(wormhole.CoreStateTemplate, wormhole.PackageName, coreState, "SubmitGovernanceVAA", fields(field("encodedVAA", damlvalue.Text(encodedVAA)), field("pubKeys", pubKeys(keys))))
}

// RequestRoot asks the operator for a root. The consumer signs.
func RequestRoot(r wormhole.ReplayRootRequest) Command {
	return CreateRecord(wormhole.ReplayRootRequestTemplate, wormhole.PackageName, r.Record())
}

// ApproveRoot grants a root to who asked. The operator controls.
func ApproveRoot(request, registry string) Command {
	return Exercise(wormhole.ReplayRootRequestTemplate, wormhole.PackageName, request, "ApproveReplayRoot",
		fields(field("registryCid", damlvalue.ContractID(registry))))
}

// RegisterEmitter registers an emitter of the owner, who controls; she needs the registry disclosed.
func RegisterEmitter(registry, owner string) Command {
	return Exercise(wormhole.EmitterRegistryTemplate, wormhole.PackageName, registry, "RegisterEmitter", fields(field("owner", damlvalue.Party(owner))))
}

// PublishMessage publishes a message, its payload in lowercase hex. The owner controls.
func PublishMessage(emitter string, nonce int64, payload string, consistencyLevel int64) Command {
	return Exercise(wormhole.EmitterTemplate, wormhole.PackageName, emitter, "PublishMessage", fields(field("nonce", damlvalue.Int(nonce)), field("payload", damlvalue.Text(payload)), field("consistencyLevel", damlvalue.Int(consistencyLevel))))
}

// Archive archives a contract. All signatories control.
func Archive(template damlvalue.TypeName, pkgName, contractID string) Command {
	return Exercise(template, pkgName, contractID, "Archive", damlvalue.Record{})
}

// Do submits commands as the parties, with the disclosures.
func (c *Client) Do(ctx context.Context, actAs []string, disclosed []Disclosure, commands ...Command) (*Result, error) {
	return c.Submit(ctx, Submission{ActAs: actAs, Commands: commands, Disclosed: disclosed})
}

func fields(list ...damlvalue.Field) damlvalue.Record { return damlvalue.Record{Fields: list} }

func field(label string, value damlvalue.Value) damlvalue.Field {
	return damlvalue.Field{Label: label, Value: value}
}

func pubKeys(keys []wormhole.PubKey) damlvalue.List {
	out := damlvalue.List{}
	for _, k := range keys {
		out = append(out, fields(field("_1", damlvalue.Int(k.Index)), field("_2", damlvalue.Text(k.Key))))
	}
	return out
}
