package wormhole

import "strings"

// ConsumeResult is what a consumed node is replaced by.
type ConsumeResult struct {
	// Nodes are the node's successor alone, or its 16 children by nibble.
	Nodes []*ReplayNode
	// Covering is the place in Nodes of the node that covers the digest: the one whose contract id the choice returns.
	Covering int
}

// Split reports whether the node was split.
func (r ConsumeResult) Split() bool { return len(r.Nodes) > 1 }

// Consume is the choice ConsumeDigest: it gives the contracts that replace the node. The error is a *Rule: RuleDigestNotHex,
// RuleNotCovered or RuleAlreadyConsumed, in this order. Uppercase digits are lowered first; 0x is not accepted.
//
// A node that holds fewer digests than its threshold, and a node at depth 63 whatever it holds, is recreated with the digest.
// Any other is split into 16 children, one per nibble and empty ones included. A child may hold more than the threshold
// right after: its next consume splits it again.
func (n *ReplayNode) Consume(digestText string) (ConsumeResult, error) {
	text := strings.Map(lowerASCII, digestText)
	if len(text) != DigestNibbles || !isLowerHex(text) {
		return ConsumeResult{}, rule(RuleDigestNotHex, "digest must be 32 bytes of lowercase hex")
	}
	digest, err := ParseDigest(text)
	if err != nil {
		return ConsumeResult{}, rule(RuleDigestNotHex, "digest must be 32 bytes of lowercase hex")
	}
	if !n.Prefix.Covers(digest) {
		return ConsumeResult{}, rule(RuleNotCovered, "replay node does not cover digest")
	}
	if n.Consumed.Contains(digest) {
		return ConsumeResult{}, rule(RuleAlreadyConsumed, "VAA already consumed")
	}
	consumed := n.Consumed.With(digest)
	if int64(n.Consumed.Len()) < n.SplitThreshold || n.Prefix.Len() == MaxPrefixNibbles {
		return ConsumeResult{Nodes: []*ReplayNode{n.at(n.Prefix, consumed)}}, nil
	}
	result := ConsumeResult{Nodes: make([]*ReplayNode, 16), Covering: int(digest.Nibble(n.Prefix.Len()))}
	for nibble := range byte(16) {
		child := n.Prefix.Child(nibble)
		result.Nodes[nibble] = n.at(child, consumed.Under(child))
	}
	return result, nil
}

// at is a node of the same scope and threshold elsewhere in the trie.
func (n *ReplayNode) at(prefix Prefix, consumed SuffixSet) *ReplayNode {
	return &ReplayNode{
		Consumer:       n.Consumer,
		Operator:       n.Operator,
		Namespace:      n.Namespace,
		Prefix:         prefix,
		SplitThreshold: n.SplitThreshold,
		Consumed:       consumed,
	}
}

// lowerASCII lowers A to Z and nothing else, as the model does.
func lowerASCII(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}
