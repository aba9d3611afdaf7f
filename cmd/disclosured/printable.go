package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What others say (a service, a participant, a blob) may hold what a terminal acts on: escape sequences, carriage returns, characters that turn the
// direction of what follows. None of it reaches one: it is shown as Go writes it in a string.

// printable is a text in one line of nothing but what is seen.
func printable(text string) string { return escaped(text, "") }

// printableLines is printable for a text of several lines.
func printableLines(text string) string { return escaped(text, "\n\t") }

// escaped writes all characters of a text as escapes that are neither seen nor kept.
func escaped(text, kept string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !isShown(r, kept) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case isShown(r, kept):
			b.WriteString(text[:size])
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

func isShown(r rune, kept string) bool {
	return r != utf8.RuneError && (unicode.IsPrint(r) || strings.ContainsRune(kept, r))
}

// printfLine prints a line, of which none of its arguments makes two.
func printfLine(out io.Writer, format string, args ...any) {
	fmt.Fprintln(out, printable(fmt.Sprintf(format, args...)))
}

// writeJSON prints JSON whose texts hold nothing that a terminal acts on, as printed text does not.
func writeJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range b.String() { // which is valid UTF-8
		switch {
		case r == '\n' || unicode.IsPrint(r):
			safe.WriteRune(r)
		case r > 0xffff: // as its two halves in UTF-16
			fmt.Fprintf(&safe, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&safe, `\u%04x`, r)
		}
	}
	_, err := io.WriteString(out, safe.String())
	return err
}
