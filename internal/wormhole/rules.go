package wormhole

import (
	"errors"
	"strconv"
)

// Rule is a check of the model that failed, as the ledger reports it.
type Rule struct {
	// Code is stable: answers and metrics carry it.
	Code RuleCode
	// Message is the ledger's text, exactly.
	Message string
	// Number is the number that the rule is about: the guardian's index of a rule on signatures, the version, the action.
	Number int64
	// Have and Need are RuleNoQuorum's.
	Have, Need int
}

// Error is the ledger's message.
func (r *Rule) Error() string { return r.Message }

// Is makes errors.Is match any rule of the same code, whatever the message: errors.Is(err, RuleAlreadyConsumed).
func (r *Rule) Is(target error) bool {
	code, ok := target.(RuleCode)
	return ok && code == r.Code
}

// RuleOf is the rule in err's chain, nil where there is none.
func RuleOf(err error) *Rule {
	var rule *Rule
	if errors.As(err, &rule) {
		return rule
	}
	return nil
}

// RuleCode names a check. It is an error so that errors.Is can look for it; it is never returned as one.
type RuleCode string

// Error is the code itself.
func (c RuleCode) Error() string { return string(c) }

// The checks, in the order in which a redeem meets them.
const (
	RuleVAANotHex              RuleCode = "VAA_NOT_LOWERCASE_HEX"
	RuleVAAVersion             RuleCode = "VAA_VERSION_UNSUPPORTED"
	RuleVAATruncated           RuleCode = "VAA_TRUNCATED"
	RuleNumberTooLarge         RuleCode = "NUMBER_EXCEEDS_63_BITS"
	RuleUnknownGuardianSet     RuleCode = "GUARDIAN_SET_UNKNOWN"
	RuleGuardianSetExpired     RuleCode = "GUARDIAN_SET_EXPIRED"
	RuleNoQuorum               RuleCode = "NO_QUORUM"
	RuleSignaturesNotAscending RuleCode = "SIGNATURES_NOT_ASCENDING"
	RuleGuardianOutOfRange     RuleCode = "GUARDIAN_INDEX_OUT_OF_RANGE"
	RulePublicKeyMissing       RuleCode = "PUBLIC_KEY_MISSING"
	RulePublicKeyMismatch      RuleCode = "PUBLIC_KEY_MISMATCH"
	RuleInvalidSignature       RuleCode = "SIGNATURE_INVALID"
	RuleOtherConsumer          RuleCode = "NODE_OF_OTHER_CONSUMER"
	RuleOtherOperator          RuleCode = "NODE_OF_OTHER_OPERATOR"
	RuleDigestNotHex           RuleCode = "DIGEST_NOT_LOWERCASE_HEX"
	RuleNotCovered             RuleCode = "DIGEST_NOT_COVERED"
	RuleAlreadyConsumed        RuleCode = "ALREADY_CONSUMED"

	// Governance.
	RuleGovernanceNotCurrentSet RuleCode = "GOVERNANCE_NOT_CURRENT_SET"
	RuleGovernanceOtherChain    RuleCode = "GOVERNANCE_NOT_FROM_GOVERNANCE_CHAIN"
	RuleGovernanceOtherContract RuleCode = "GOVERNANCE_NOT_FROM_GOVERNANCE_CONTRACT"
	RuleGovernanceConsumed      RuleCode = "GOVERNANCE_ALREADY_CONSUMED"
	RuleGovernanceOtherModule   RuleCode = "GOVERNANCE_OTHER_MODULE"
	RuleGovernanceForOtherChain RuleCode = "GOVERNANCE_FOR_OTHER_CHAIN"
	RuleGovernanceTrailingBytes RuleCode = "GOVERNANCE_TRAILING_BYTES"
	RuleGovernanceEmptySet      RuleCode = "GOVERNANCE_EMPTY_SET"
	RuleGovernanceNotNextSet    RuleCode = "GOVERNANCE_NOT_NEXT_SET"
	RuleGovernanceUnknownAction RuleCode = "GOVERNANCE_ACTION_UNSUPPORTED"
	RuleRootAlreadyGranted      RuleCode = "ROOT_ALREADY_GRANTED"
	RuleRegistryOfOtherOperator RuleCode = "REGISTRY_OF_OTHER_OPERATOR"
	RulePayloadNotHex           RuleCode = "PAYLOAD_NOT_LOWERCASE_HEX"
	RuleTemplatePrecondition    RuleCode = "TEMPLATE_PRECONDITION_VIOLATED"
	RuleArithmetic              RuleCode = "ARITHMETIC_ERROR"
)

func rule(code RuleCode, message string) *Rule { return &Rule{Code: code, Message: message} }

func numbered(code RuleCode, message string, i int64) *Rule {
	return &Rule{Code: code, Message: message + strconv.FormatInt(i, 10), Number: i}
}
