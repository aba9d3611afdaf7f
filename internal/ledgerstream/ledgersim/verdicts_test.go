package ledgersim_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay/recordings"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/telemetry"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// modelVAAs are VAAs with what the model on a real participant answered; package wormhole's testdata tells where they come from.
type modelVAAs struct {
	CoreState struct {
		ChainID            int64  `json:"chainId"`
		GovernanceChainID  int64  `json:"governanceChainId"`
		GovernanceContract string `json:"governanceContract"`
		GuardianSetIndex   int64  `json:"guardianSetIndex"`
		MessageFee         int64  `json:"messageFee"`
		GuardianSets       map[string]struct {
			Keys       []string   `json:"keys"`
			Expiration *time.Time `json:"expirationTime"`
		} `json:"guardianSets"`
	} `json:"coreState"`
	Integrator struct {
		PeerChain   int64  `json:"peerChain"`
		PeerAddress string `json:"peerAddress"`
	} `json:"integrator"`
	VAAs []modelVAA `json:"vaas"`
}

type modelVAA struct {
	Name       string   `json:"name"`
	Call       string   `json:"call"`
	EncodedVAA string   `json:"encodedVAA"`
	Digest     string   `json:"digest"`
	PubKeys    [][2]any `json:"pubKeys"`
	Expected   string   `json:"expected"`
	Verifies   bool     `json:"verifies"`
}

func (v modelVAA) keys() (keys []wormhole.PubKey) {
	for _, k := range v.PubKeys {
		keys = append(keys, wormhole.PubKey{Index: int64(k[0].(float64)), Key: k[1].(string)})
	}
	return keys
}

func (m *modelVAAs) state(t *testing.T) *wormhole.CoreState {
	t.Helper()
	c := m.CoreState
	state := &wormhole.CoreState{
		ChainID: c.ChainID, GovernanceChainID: c.GovernanceChainID, GovernanceContract: c.GovernanceContract, GuardianSetIndex: c.GuardianSetIndex,
		MessageFee: c.MessageFee, GuardianSets: map[int64]wormhole.GuardianSet{}, ConsumedGovernance: []string{},
	}
	for text, set := range c.GuardianSets {
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		state.GuardianSets[i] = wormhole.GuardianSet{Keys: set.Keys, Expiration: set.Expiration}
	}
	return state
}

// The rows whose recorded failure is not the VAA's, so that PrepareRedeem's verdict is another than the participant's answer.
var (
	// The app's own check comes after the bridge's: the VAA is redeemable by whom it is for.
	ofTheApp = []string{"other chain", "other emitter"}
	// The submitter's keys were at fault: with the keys that PrepareRedeem gives, the redeem commits.
	ofTheKeys = []string{"other guardian's public key", "public key left out"}
	// The VAA is invalid, and the participant named the submitter's key, which was the signer's and not the guardian's. The verdict is
	// what it says to the guardian's key.
	ofTheKeysToo = map[string]string{"signed by another key": "invalid signature for guardian index 0"}
)

// verdictWorld is a participant with the model VAAs' CoreState, and the service over an index that the test moves along.
type verdictWorld struct {
	t      *testing.T
	data   modelVAAs
	sim    *ledgersim.Sim
	conn   *grpc.ClientConn
	client *submit.Client
	index  *index.Index
	api    disclosurev1.DisclosureServiceClient

	operator, governance, consumer, user string
	coreState, integrator                string
}

func newVerdictWorld(t *testing.T) *verdictWorld {
	t.Helper()
	w := &verdictWorld{t: t, sim: ledgersim.New(ledgersim.Options{Seed: 11})}
	f, err := os.Open("../../wormhole/testdata/model-vaas.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(unzipped).Decode(&w.data); err != nil {
		t.Fatal(err)
	}
	address, err := w.sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.sim.Stop)
	if w.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.conn.Close() })
	w.client = submit.New(w.conn, "verdicts")
	for hint, party := range map[string]*string{"operator": &w.operator, "governance": &w.governance, "consumer": &w.consumer, "user": &w.user} {
		if *party, err = w.client.AllocateParty(t.Context(), hint); err != nil {
			t.Fatal(err)
		}
	}
	w.coreState = w.newCoreState()
	w.create(&wormhole.ReplayNode{Consumer: w.consumer, Operator: w.operator, SplitThreshold: 4, Consumed: wormhole.NewSuffixSet()}, w.operator, w.consumer)
	created := w.do(submit.CreateIntegrator(submit.Integrator{
		Manager: w.consumer, Operator: w.operator, Users: []string{w.user}, PeerChain: w.data.Integrator.PeerChain, PeerAddress: w.data.Integrator.PeerAddress,
	}), nil, w.consumer)
	w.integrator = created.Created[0].ContractID
	w.serve()
	return w
}

func (w *verdictWorld) do(command submit.Command, disclosed []submit.Disclosure, actAs ...string) *submit.Result {
	w.t.Helper()
	result, err := w.client.Do(w.t.Context(), actAs, disclosed, command)
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *verdictWorld) create(p wormhole.Payload, signers ...string) string {
	w.t.Helper()
	return w.do(submit.Create(p), nil, signers...).Created[0].ContractID
}

func (w *verdictWorld) newCoreState() string {
	w.t.Helper()
	state := w.data.state(w.t)
	state.Operator, state.GuardianGovernance, state.GuardianObserver = w.operator, w.governance, w.governance
	return w.create(state, w.operator, w.governance)
}

// serve starts the service over an index of the ledger as it is.
func (w *verdictWorld) serve() {
	w.t.Helper()
	ctx := context.Background()
	x, err := index.Open(ctx, index.Policy{GuardianGovernance: w.governance}, nil, index.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.index = x
	end := w.sim.LedgerEnd()
	seed, err := x.BeginSeed(ctx, ledger.SeedStart{ParticipantID: w.sim.ParticipantID(), Offset: end, Reason: ledger.SeedFirst})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := seed.Add(ctx, w.sim.Active(end)); err != nil {
		w.t.Fatal(err)
	}
	if err := seed.Commit(ctx); err != nil {
		w.t.Fatal(err)
	}
	cfg := api.DefaultConfig()
	cfg.OpsListen = ""
	server, err := api.New(cfg, api.Deps{Index: x, Metrics: telemetry.New("test").API, Status: func() api.Status {
		offset := x.View().Position().Offset
		return api.Status{State: "live", ParticipantID: w.sim.ParticipantID(), LedgerEnd: offset, ProvenOffset: offset, ProvenAt: time.Now()}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.ServeOn(serving, listener, nil) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		conn.Close()
		stop()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.api = disclosurev1.NewDisclosureServiceClient(conn)
}

// follow moves the index to the ledger's end.
func (w *verdictWorld) follow() {
	w.t.Helper()
	at, end := w.index.View().Position().Offset, w.sim.LedgerEnd()
	if err := w.index.Apply(w.t.Context(), ledger.Batch{ParticipantID: w.sim.ParticipantID(), After: at, Updates: w.sim.Changes(at, end), Through: end}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *verdictWorld) prepare(encodedVAA string) *disclosurev1.PrepareRedeemResponse {
	w.t.Helper()
	w.follow()
	answer, err := w.api.PrepareRedeem(w.t.Context(), &disclosurev1.PrepareRedeemRequest{
		Scope: &disclosurev1.ScopeSelector{Consumer: w.consumer}, Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: encodedVAA},
		CoreStateContractId: w.coreState,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// redeem submits with these keys and gives the update, or the model's words.
func (w *verdictWorld) redeem(v modelVAA, keys []wormhole.PubKey) (updateID, said string) {
	w.t.Helper()
	digest, err := wormhole.ParseDigest(v.Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	end := w.sim.LedgerEnd()
	node := w.sim.Covering(ledgersim.Scope{Consumer: w.consumer, Operator: w.operator}, digest, end)
	core := w.sim.ActiveAt(w.coreState, end)
	if len(node) != 1 || len(core) != 1 {
		w.t.Fatalf("%d nodes, %d core states", len(node), len(core))
	}
	return w.outcome(w.client.Do(w.t.Context(), []string{w.user}, []submit.Disclosure{submit.Disclose(core[0]), submit.Disclose(node[0])}, submit.Redeem(submit.Redemption{
		Integrator: w.integrator, CoreState: w.coreState, ReplayNode: node[0].ContractID, Redeemer: w.user, EncodedVAA: v.EncodedVAA, PubKeys: keys,
	})))
}

func (w *verdictWorld) outcome(result *submit.Result, err error) (updateID, said string) {
	w.t.Helper()
	var rejection *submit.Rejection
	switch {
	case err == nil:
		return result.UpdateID, "ok"
	case errors.As(err, &rejection) && rejection.ModelMessage() != "":
		return "", rejection.ModelMessage()
	}
	w.t.Fatal(err)
	return "", ""
}

// TestModelVerdicts holds three to what a real participant answered to each of 33 VAAs: the simulated participant to the whole answer, the
// recording of that participant to the table, and PrepareRedeem's verdict to both.
func TestModelVerdicts(t *testing.T) {
	w := newVerdictWorld(t)
	if len(w.data.VAAs) != 33 {
		t.Fatalf("%d VAAs, want 33", len(w.data.VAAs))
	}
	recorded := recordedRedeems(t)
	arguments := 0
	for _, v := range w.data.VAAs {
		answer := w.prepare(v.EncodedVAA)
		checkVerdict(t, v, answer)

		// The recording has the same arguments and the same answer.
		if r, ok := recorded[v.EncodedVAA]; !ok || r.call != v.Call || r.said != v.Expected || !slices.Equal(r.keys, v.keys()) {
			t.Errorf("%s: recorded is %s %v: %s", v.Name, r.call, r.keys, r.said)
		} else if argument := r.argument; argument != nil {
			checkArgument(t, v, answer, argument)
			arguments++
		}

		if v.Call == "SubmitGovernanceVAA" {
			// On a CoreState of its own, as recorded; it goes away again.
			own := w.newCoreState()
			_, said := w.outcome(w.client.Do(t.Context(), []string{w.operator}, nil, submit.SubmitGovernance(own, v.EncodedVAA, v.keys())))
			if said != v.Expected {
				t.Errorf("%s: the simulated participant says %q, want %q", v.Name, said, v.Expected)
			}
			continue
		}
		updateID, said := w.redeem(v, v.keys())
		if said != v.Expected {
			t.Errorf("%s: the simulated participant says %q, want %q", v.Name, said, v.Expected)
		}
		switch {
		case slices.Contains(ofTheKeys, v.Name):
			// With our keys it commits.
			if updateID, said = w.redeem(v, ourKeys(answer)); said != "ok" {
				t.Errorf("%s: with the keys of PrepareRedeem the simulated participant says %q", v.Name, said)
			}
		case ofTheKeysToo[v.Name] != "":
			// With the guardian's own key the participant says what our verdict says.
			key := wormhole.PubKeys(map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()})
			if _, said := w.redeem(v, key); said != ofTheKeysToo[v.Name] {
				t.Errorf("%s: with the guardian's key the simulated participant says %q", v.Name, said)
			}
		}
		if updateID == "" {
			continue
		}
		// Once it has committed, the verdict is the ledger's again, and names the update.
		again := w.prepare(v.EncodedVAA)
		if again.GetVerdict() != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || again.GetConsumption().GetUpdateId() != updateID {
			t.Errorf("%s, redeemed by %s: %v", v.Name, updateID, again)
		}
		if _, said := w.redeem(v, ourKeys(answer)); said != "VAA already consumed" {
			t.Errorf("%s, redeemed: the simulated participant says %q", v.Name, said)
		}
	}
	if arguments != 11 {
		t.Errorf("%d arguments were compared, want those of the 11 redeems that committed", arguments)
	}
}

// checkVerdict holds PrepareRedeem's verdict before the redeem to the row.
func checkVerdict(t *testing.T, v modelVAA, answer *disclosurev1.PrepareRedeemResponse) {
	t.Helper()
	redeemable := answer.GetVerdict() == disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE
	if redeemable != v.Verifies || !redeemable && answer.GetVerdict() != disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID {
		t.Errorf("%s: verdict %s, verifies is %v", v.Name, answer.GetVerdict(), v.Verifies)
	}
	if v.Call != "Redeem" {
		return // what governance says to the payload is not a redeem's
	}
	want := v.Expected
	switch {
	case slices.Contains(ofTheApp, v.Name), slices.Contains(ofTheKeys, v.Name), want == "ok":
		want = ""
	case ofTheKeysToo[v.Name] != "":
		want = ofTheKeysToo[v.Name]
	}
	if got := answer.GetFailedRule().GetMessage(); got != want {
		t.Errorf("%s: verdict %q, the participant said %q", v.Name, got, v.Expected)
	}
	if redeemable && answer.GetDigest() != v.Digest {
		t.Errorf("%s: digest %s, want %s", v.Name, answer.GetDigest(), v.Digest)
	}
}

func ourKeys(answer *disclosurev1.PrepareRedeemResponse) (keys []wormhole.PubKey) {
	for _, k := range answer.GetArguments().GetPubKeys() {
		keys = append(keys, wormhole.PubKey{Index: k.GetGuardianIndex(), Key: k.GetPublicKey()})
	}
	return keys
}

// recordedRedeem is one recorded submission of a VAA.
type recordedRedeem struct {
	call, said string
	keys       []wormhole.PubKey
	// argument is VerifyAndConsumeVAA's, as the recorded transaction has it; nil where there is none.
	argument *v2.Record
}

// recordedRedeems are those of recording 12-vaas, by encoded VAA.
func recordedRedeems(t *testing.T) map[string]recordedRedeem {
	t.Helper()
	recording, err := recordings.Get("12-vaas")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]recordedRedeem{}
	for _, call := range recording.Calls {
		if call.Method != v2.CommandService_SubmitAndWaitForTransaction_FullMethodName {
			continue
		}
		var request v2.SubmitAndWaitForTransactionRequest
		if err := call.Request(&request); err != nil {
			t.Fatal(err)
		}
		exercise := request.GetCommands().GetCommands()[0].GetExercise()
		encoded := field(exercise.GetChoiceArgument().GetRecord(), "encodedVAA").GetText()
		if encoded == "" {
			continue
		}
		r := recordedRedeem{call: exercise.GetChoice(), said: "ok"}
		for _, pair := range field(exercise.GetChoiceArgument().GetRecord(), "pubKeys").GetList().GetElements() {
			r.keys = append(r.keys, wormhole.PubKey{Index: field(pair.GetRecord(), "_1").GetInt64(), Key: field(pair.GetRecord(), "_2").GetText()})
		}
		if err := call.Status.Err(); err != nil {
			_, r.said, _ = strings.Cut(err.Error(), "(error category 9): ")
		}
		for _, response := range call.Responses {
			var committed v2.SubmitAndWaitForTransactionResponse
			if err := response.Into(&committed); err != nil {
				t.Fatal(err)
			}
			for _, event := range committed.GetTransaction().GetEvents() {
				if event.GetExercised().GetChoice() == "VerifyAndConsumeVAA" {
					r.argument = event.GetExercised().GetChoiceArgument().GetRecord()
				}
			}
		}
		found[encoded] = r
	}
	return found
}

func field(r *v2.Record, label string) *v2.Value {
	for _, f := range r.GetFields() {
		if f.GetLabel() == label {
			return f.GetValue()
		}
	}
	return nil
}

// checkArgument holds our encoded argument to the one of a recorded transaction, where the integrator's choice made it: the same fields of the
// same kinds in the same order, and the VAA and the keys themselves. (The parties and contracts were others.)
func checkArgument(t *testing.T, v modelVAA, answer *disclosurev1.PrepareRedeemResponse, recorded *v2.Record) {
	t.Helper()
	var ours v2.Value
	if err := proto.Unmarshal(answer.GetArguments().GetVerifyAndConsumeValue(), &ours); err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	want := proto.Clone(recorded).(*v2.Record)
	withoutIDs(want)
	for _, f := range want.GetFields() {
		switch f.GetLabel() {
		case "consumer":
			f.GetValue().GetSum().(*v2.Value_Party).Party = answer.GetArguments().GetConsumer()
		case "replayNodeCid":
			f.GetValue().GetSum().(*v2.Value_ContractId).ContractId = answer.GetReplayNode().GetContract().GetContractId()
		}
	}
	if diff := cmp.Diff(&v2.Value{Sum: &v2.Value_Record{Record: want}}, &ours, protocmp.Transform()); diff != "" {
		t.Errorf("%s: the argument (-recorded +ours):\n%s", v.Name, diff)
	}
}

func withoutIDs(r *v2.Record) {
	r.RecordId = nil
	for _, f := range r.GetFields() {
		for _, e := range f.GetValue().GetList().GetElements() {
			withoutIDs(e.GetRecord())
		}
	}
}

// TestArgumentCommits exercises VerifyAndConsumeVAA with the encoded argument as it was given, by way of the Ledger API's own messages.
func TestArgumentCommits(t *testing.T) {
	w := newVerdictWorld(t)
	vaa := wormhole.SignVAA(wormhole.VAABody{EmitterChain: 2, Sequence: 5, Payload: []byte("as given")}, 2, map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()})
	answer := w.prepare("0x" + strings.ToUpper(hex.EncodeToString(vaa.Encode())))
	var argument v2.Value
	if err := proto.Unmarshal(answer.GetArguments().GetVerifyAndConsumeValue(), &argument); err != nil {
		t.Fatal(err)
	}
	committed, err := v2.NewCommandServiceClient(w.conn).SubmitAndWaitForTransaction(t.Context(), &v2.SubmitAndWaitForTransactionRequest{
		Commands: &v2.Commands{
			UserId: "verdicts", CommandId: "as-given", ActAs: []string{w.consumer},
			Commands: []*v2.Command{{Command: &v2.Command_Exercise{Exercise: &v2.ExerciseCommand{
				TemplateId: &v2.Identifier{PackageId: "#" + wormhole.PackageName, ModuleName: wormhole.CoreStateTemplate.Module, EntityName: wormhole.CoreStateTemplate.Entity},
				ContractId: answer.GetArguments().GetCoreStateContractId(), Choice: "VerifyAndConsumeVAA", ChoiceArgument: &argument,
			}}}},
			DisclosedContracts: disclosedContracts(t, answer),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	again := w.prepare(vaa.EncodedHex())
	if again.GetConsumption().GetUpdateId() != committed.GetTransaction().GetUpdateId() || len(again.GetDisclosedContracts()) != 0 {
		t.Errorf("after update %s: %v", committed.GetTransaction().GetUpdateId(), again)
	}
}

// disclosedContracts are the answer's, read by the Ledger API's own message.
func disclosedContracts(t *testing.T, answer *disclosurev1.PrepareRedeemResponse) (out []*v2.DisclosedContract) {
	t.Helper()
	for _, d := range answer.GetDisclosedContracts() {
		raw, err := proto.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var theirs v2.DisclosedContract
		if err := proto.Unmarshal(raw, &theirs); err != nil {
			t.Fatal(err)
		}
		out = append(out, &theirs)
	}
	return out
}
