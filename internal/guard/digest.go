package guard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// digestSize is how many bytes of a digest are kept: two texts that share them must not be
// found by whoever chooses both.
const digestSize = 16

// digest names a text without telling it: only who has the key can try what it may be.
func (g *Guard) digest(of, text string) string {
	if text == "" {
		return ""
	}
	m := hmac.New(sha256.New, g.config.DigestKey)
	m.Write([]byte("tombolo " + of + "\x00" + text))
	return hex.EncodeToString(m.Sum(nil)[:digestSize])
}

// keyed makes the digest in what policy.Action.Env says one that takes the key.
func (g *Guard) keyed(env string) string {
	i := strings.LastIndex(env, "#")
	if i < 0 {
		return env
	}
	return env[:i+1] + g.digest("variables", env[i+1:])
}
