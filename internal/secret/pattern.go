package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"unicode/utf16"

	"github.com/tombolo-dev/tombolo/internal/replace"
)

// patterns are the forms in which a value may come back in an answer: itself, and as
// the common encodings write it. Each is replaced by the placeholder.
func patterns(value []byte, placeholder string) []replace.Pair {
	var pairs []replace.Pair
	seen := map[string]bool{}
	for _, form := range forms(string(value)) {
		// What is left of a short one would be found by chance.
		if len(form) >= MinValue && !seen[form] {
			seen[form] = true
			pairs = append(pairs, replace.Pair{Old: []byte(form), New: []byte(placeholder)})
		}
	}
	return pairs
}

func forms(value string) []string {
	all := []string{value, html.EscapeString(value)}
	all = append(all, base64Forms(value)...)
	for _, escaped := range []string{url.QueryEscape(value), url.PathEscape(value), strings.ReplaceAll(url.QueryEscape(value), "+", "%20"), uriComponent(value)} {
		all = append(all, escaped, lowerPercent(escaped))
	}
	for _, escaped := range []string{jsonText(value, true), jsonText(value, false), jsonASCII(value)} {
		all = append(all, escaped, strings.ReplaceAll(escaped, "/", `\/`))
	}
	digits := hex.EncodeToString([]byte(value))
	return append(all, digits, strings.ToUpper(digits))
}

// base64Forms are what of a value is seen in base64 text that holds it anywhere, such
// as after "user:" in an Authorization header: three forms, for where it begins within
// three bytes, without the characters that its neighbours have a part in.
func base64Forms(value string) (all []string) {
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before, shared := range []int{0, 2, 3} {
			text := encoding.EncodeToString(append(make([]byte, before), value...))
			end := len(text)
			if (before+len(value))%3 != 0 {
				end--
			}
			all = append(all, text[min(shared, end):end])
		}
	}
	return all
}

// uriComponent escapes as JavaScript's function of that name does.
func uriComponent(value string) string {
	escaped := strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
	return strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*").Replace(escaped)
}

// lowerPercent writes what follows each % in lower case.
func lowerPercent(escaped string) string {
	b := []byte(escaped)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// jsonText is a text as it stands within a string of JSON.
func jsonText(text string, escapeHTML bool) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(escapeHTML)
	_ = e.Encode(text) // a string can be encoded
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(out.String(), "\n"), `"`), `"`)
}

// jsonASCII is jsonText with all but ASCII as \u.
func jsonASCII(text string) string {
	var out strings.Builder
	for _, r := range jsonText(text, false) {
		if r < 0x80 {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}
