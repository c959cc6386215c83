package files

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// operation is what a signed URL allows.
type operation string

const (
	read  operation = "read"
	write operation = "write"
)

// sign computes the signature of E2B's file URLs: "v1_" and the unpadded base64
// of a SHA-256 over the parts, joined by colons. The expiration (Unix seconds)
// is part of it when the URL has one.
func sign(path string, op operation, user, token, expiration string) string {
	text := path + ":" + string(op) + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// verify checks the signature in a query. Every error is a 401.
func verify(q url.Values, op operation, token string, now time.Time) error {
	given := q.Get("signature")
	if given == "" {
		return refuse(http.StatusUnauthorized, "missing signature query parameter")
	}
	expiration := q.Get("signature_expiration")
	want := sign(q.Get("path"), op, q.Get("username"), token, expiration)
	if subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1 {
		return refuse(http.StatusUnauthorized, "invalid signature")
	}
	if expiration == "" {
		return nil
	}
	until, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return refuse(http.StatusUnauthorized, "invalid signature expiration")
	}
	if now.Unix() > until {
		return refuse(http.StatusUnauthorized, "signature is already expired")
	}
	return nil
}
