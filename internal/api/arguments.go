package api

import (
	"encoding/json"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// arguments are the choice's arguments, three times: as fields, as JSON, as an encoded value.
func arguments(vaa *wormhole.VAA, keys []wormhole.PubKey, scope index.Scope, core, node *index.Entry) (*disclosurev1.RedeemArguments, error) {
	args := &disclosurev1.RedeemArguments{
		EncodedVaa:           vaa.EncodedHex(),
		Consumer:             scope.Consumer,
		ReplayNodeContractId: node.ContractID,
		CoreStateContractId:  core.ContractID,
	}
	for _, key := range keys {
		args.PubKeys = append(args.PubKeys, &disclosurev1.GuardianPublicKey{GuardianIndex: key.Index, PublicKey: key.Key})
	}
	var err error
	if args.VerifyAndConsumeJson, err = argumentJSON(args); err != nil {
		return nil, err
	}
	args.VerifyAndConsumeValue = argumentValue(args)
	return args, nil
}

// argumentJSON is the argument as the JSON Ledger API takes it: an Int64 is a text (a number is refused there), a tuple an object of _1 and
// _2.
func argumentJSON(args *disclosurev1.RedeemArguments) (string, error) {
	type pair struct {
		Index string `json:"_1"`
		Key   string `json:"_2"`
	}
	argument := struct {
		EncodedVAA    string `json:"encodedVAA"`
		PubKeys       []pair `json:"pubKeys"`
		Consumer      string `json:"consumer"`
		ReplayNodeCID string `json:"replayNodeCid"`
	}{args.EncodedVaa, make([]pair, 0, len(args.PubKeys)), args.Consumer, args.ReplayNodeContractId}
	for _, key := range args.PubKeys {
		argument.PubKeys = append(argument.PubKeys, pair{strconv.FormatInt(key.GuardianIndex, 10), key.PublicKey})
	}
	text, err := json.Marshal(argument)
	if err != nil {
		return "", fmt.Errorf("encode the choice's argument as JSON: %w", err)
	}
	return string(text), nil
}

// The fields of com.daml.ledger.api.v2.Value and of the messages in it that an argument needs (value.proto of the Ledger API; the values
// inside created event blobs are of another proto with other numbers).
const (
	valueInt64      protowire.Number = 3 // sint64
	valueParty      protowire.Number = 7
	valueText       protowire.Number = 8
	valueContractID protowire.Number = 9
	valueList       protowire.Number = 11
	valueRecord     protowire.Number = 14

	recordFields     protowire.Number = 2
	recordFieldLabel protowire.Number = 1
	recordFieldValue protowire.Number = 2
	listElements     protowire.Number = 1
)

// argumentValue is the argument as an encoded Value: records with labels and without ids, which would tie the command to one package
// version.
func argumentValue(args *disclosurev1.RedeemArguments) []byte {
	var keys []byte
	for _, key := range args.PubKeys {
		keys = appendMessage(keys, listElements, record(
			recordField("_1", protowire.AppendVarint(protowire.AppendTag(nil, valueInt64, protowire.VarintType), protowire.EncodeZigZag(key.GuardianIndex))),
			recordField("_2", textValue(valueText, key.PublicKey)),
		))
	}
	return record(
		recordField("encodedVAA", textValue(valueText, args.EncodedVaa)),
		recordField("pubKeys", appendMessage(nil, valueList, keys)),
		recordField("consumer", textValue(valueParty, args.Consumer)),
		recordField("replayNodeCid", textValue(valueContractID, args.ReplayNodeContractId)),
	)
}

// record is a Value that is a record of the encoded fields.
func record(fields ...[]byte) []byte {
	var all []byte
	for _, field := range fields {
		all = appendMessage(all, recordFields, field)
	}
	return appendMessage(nil, valueRecord, all)
}

func recordField(label string, value []byte) []byte {
	return appendMessage(textValue(recordFieldLabel, label), recordFieldValue, value)
}

func textValue(number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), text)
}

func appendMessage(to []byte, number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), message)
}
