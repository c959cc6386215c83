package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestNormalHost(t *testing.T) {
	for raw, want := range map[string]string{
		"example.com":                "example.com",
		"EXAMPLE.Com":                "example.com",
		"example.com.":               "example.com",
		"_dmarc.Example.com":         "_dmarc.example.com",
		"bücher.example":             "xn--bcher-kva.example",
		"BÜCHER.example":             "xn--bcher-kva.example",
		"XN--BCHER-KVA.example":      "xn--bcher-kva.example",
		"faß.example":                "xn--fa-hia.example",
		"ｅｘａｍｐｌｅ．ｃｏｍ":                "example.com",
		"example。com。":               "example.com",
		"r3---sn-apo3qvuo.video.com": "r3---sn-apo3qvuo.video.com",
		"localhost":                  "localhost",
		"0x7f.1.nip.io":              "0x7f.1.nip.io",
		"1.0.0.127.in-addr.arpa":     "1.0.0.127.in-addr.arpa",
		"a.0xyz":                     "a.0xyz",
	} {
		got, err := policy.NormalHost(raw)
		require.NoError(t, err, raw)
		require.Equal(t, want, got, raw)
	}
}

func TestNormalHostRefuses(t *testing.T) {
	for raw, why := range map[string]string{
		"":                         "empty",
		".":                        "empty part",
		"..":                       "empty part",
		"example..com":             "empty part",
		".example.com":             "empty part",
		"example.com..":            "empty part",
		"attacker\x00.example.com": `'\x00'`,
		"attacker\\0.example.com":  `'\\'`,
		"example.com\n":            `'\n'`,
		"exa mple.com":             "' '",
		"example%2ecom":            "'%'",
		"example.com/x":            "'/'",
		"user@example.com":         "'@'",
		"*.example.com":            "'*'",
		"example.com:443":          "colon",
		"https://example.com":      "colon",
		"[example.com]":            "bracket",
		"℀.example.com":            "'/'",
		"xn--.example":             "empty part",
		"xn--a.example":            "international",
		"xn--\xff.example":         "international",
		"exam\u202eple.com":        "international",
		"a\u200db.example":         "international",
		strings.Repeat("a", 64):    "part longer than 63",
		strings.Repeat("a.", 127):  "",
		strings.Repeat("a.", 200):  "longer than 253",
		strings.Repeat("ä", 600):   "longer than 1024",
		"127.0.0.1":                "an address",
		"127.0.0.1.":               "an address",
		"127.1":                    "an address",
		"0x7f.1":                   "an address",
		"0X7F.0.0.1":               "an address",
		"2130706433":               "an address",
		"017700000001":             "an address",
		"0x":                       "an address",
		"1.2.3.4.5":                "an address",
		"example.com.1":            "an address",
		"１２７.0.0.1":                "an address",
		"①②⑦.0.0.1":                "an address",
		"[::1]":                    "an address",
		"::1":                      "an address",
		"::ffff:127.0.0.1":         "an address",
		"[::ffff:7f00:1]":          "an address",
		"fe80::1%eth0":             "an address",
		"fe80::1%25eth0":           "an address",
	} {
		got, err := policy.NormalHost(raw)
		if why == "" {
			require.NoError(t, err, raw)
			continue
		}
		require.Error(t, err, "%q became %q", raw, got)
		require.Empty(t, got)
		if why == "an address" {
			require.ErrorIs(t, err, policy.ErrIsAddress, raw)
		}
		require.ErrorContains(t, err, why, raw)
	}
}
