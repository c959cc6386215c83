package event

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	attemptTimeout   = 10 * time.Second
	maxAnswer        = 64 << 10
	maxAnswerHeaders = 16 << 10
	// maxRetryAfter is the longest wait a receiver may ask for.
	maxRetryAfter = 24 * time.Hour
)

// Format makes the body of a delivery and the headers that go with it in a
// dialect's shape. It must give the same for the same delivery.
type Format func(d store.DueDelivery) (body []byte, header http.Header, err error)

// SenderConfig is what a sender works with. Format and Refuse are required.
type SenderConfig struct {
	Format Format
	// Refuse says what an address is that must not be connected to, or "".
	Refuse func(netip.Addr) string
	// Timeout of one attempt, the receiver's answer included; 10 s when 0.
	Timeout time.Duration
	// TLS is how https is spoken; nil trusts what the machine trusts.
	TLS *tls.Config
	// UserAgent names the server.
	UserAgent string
}

// Sender makes single attempts. Whoever owns a key can have this process send a
// request wherever he likes, so it connects to no address that Refuse names, looks
// at the address itself when the name has been resolved, follows no redirect, uses
// no proxy, and keeps nothing of the answer but its status code.
type Sender struct {
	config SenderConfig
	client *http.Client
}

// NewSender makes a sender.
func NewSender(c SenderConfig) *Sender {
	if c.Timeout == 0 {
		c.Timeout = attemptTimeout
	}
	dialer := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if why := c.Refuse(to.Addr()); why != "" {
			return refusal(to.Addr(), why)
		}
		return nil
	}}
	return &Sender{config: c, client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			ForceAttemptHTTP2:      true,
			TLSClientConfig:        c.TLS,
			MaxResponseHeaderBytes: maxAnswerHeaders,
			MaxIdleConnsPerHost:    perWebhook,
			MaxIdleConns:           maxAtOnce,
			IdleConnTimeout:        30 * time.Second,
		},
	}}
}

// Close drops idle connections.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// AllowPrivate lets private and loopback addresses through and leaves all others
// to refuse: link-local ones and those where clouds keep metadata stay closed.
func AllowPrivate(refuse func(netip.Addr) string) func(netip.Addr) string {
	return func(addr netip.Addr) string {
		plain := addr.Unmap().WithZone("")
		if slices.Contains(metadata, plain) {
			return "where clouds keep metadata"
		}
		if plain.IsPrivate() || plain.IsLoopback() {
			return ""
		}
		return refuse(addr)
	}
}

// metadata are the addresses of cloud metadata services in private ranges: those
// of AWS, Google and Oracle, as their documentation has them.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("fd00:c1::a9fe:a9fe"),
}

// refusedError says that an address must not be connected to.
type refusedError struct {
	addr netip.Addr
	why  string
}

func refusal(addr netip.Addr, why string) error { return &refusedError{addr, why} }

func (e *refusedError) Error() string {
	return fmt.Sprintf("%s is %s; webhooks reach public addresses only, and private ones and loopback where the server runs with --webhook-allow-private", e.addr, e.why)
}

// send makes one attempt. wait is how long the receiver wants to be left alone.
func (s *Sender) send(ctx context.Context, d store.DueDelivery) (a store.Attempt, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	a.At = time.Now().UTC()
	body, header, err := s.config.Format(d)
	if err != nil {
		a.Error = "the event cannot be encoded: " + err.Error()
		return a, 0
	}
	code, header, err := s.post(ctx, d, a.At, body, header)
	a.Duration, a.StatusCode = time.Since(a.At), code
	switch {
	case err != nil:
		a.Error = s.explain(ctx, err)
	case code < 200 || code > 299:
		a.Error = fmt.Sprintf("the receiver answered %d %s", code, http.StatusText(code))
		wait = retryAfter(header, time.Now())
	}
	return a, wait
}

func (s *Sender) post(ctx context.Context, d store.DueDelivery, now time.Time, body []byte, header http.Header) (code int, answered http.Header, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.Webhook.URL, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.config.UserAgent)
	req.Header.Set("Tombolo-Attempt", strconv.Itoa(len(d.Attempts)+1))
	sign(req.Header, d.Webhook.Secret, d.ID, now, body)
	answer, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	// The status is all that counts; reading a short rest lets the connection be used
	// again.
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header, nil
}

// sign adds the headers of the Standard Webhooks specification
// (standardwebhooks.com), whose libraries verify them when they are given the
// secret as raw bytes. It is an HMAC over the delivery's id, the time and the body.
func sign(h http.Header, secret, id string, now time.Time, body []byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", timestamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// explain says what went wrong in words of its own: errors of the libraries quote
// the address, which may hold a secret, and what the receiver wrote.
func (s *Sender) explain(ctx context.Context, err error) string {
	var (
		refused *refusedError
		name    *net.DNSError
		errno   syscall.Errno
		record  tls.RecordHeaderError
		alert   tls.AlertError
		verify  *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &refused):
		return refused.Error()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Sprintf("no whole answer within %s", s.config.Timeout)
	case errors.As(err, &name) && name.IsNotFound:
		return "the name of the receiver is not found"
	case errors.As(err, &name):
		return "the name of the receiver cannot be resolved just now"
	case errors.As(err, &errno):
		return "no connection to the receiver: " + errno.Error()
	case errors.As(err, &verify):
		return "the receiver's certificate is not valid: " + certificateFault(verify)
	case errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch):
		return "the receiver does not speak https"
	case errors.As(err, &alert):
		return "the receiver refuses the TLS connection"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the receiver closed the connection without an answer"
	}
	return "the receiver's answer is no HTTP"
}

func certificateFault(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &unknown):
		return "this machine does not trust its authority"
	case errors.As(err, &name):
		return "it is for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "it has expired or is not valid yet"
	}
	return "it cannot be verified"
}

// retryAfter reads the header of that name (RFC 9110 10.2.3): seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if value == "" {
		return 0
	}
	wait := maxRetryAfter
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		wait = at.Sub(now)
	} else if strings.Trim(value, "0123456789") != "" {
		return 0 // neither
	}
	return max(0, min(wait, maxRetryAfter))
}
