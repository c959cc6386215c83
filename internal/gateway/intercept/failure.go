package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// answerError answers a request for which there is no answer of the destination's.
func answerError(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there to be answered
	}
	var refusal *gateway.Refusal
	if errors.As(err, &refusal) {
		refuse(w, http.StatusForbidden, x.request, refusal.Decision)
		return
	}
	if encoded := errEncodedMessages(""); errors.As(err, &encoded) {
		fail(w, http.StatusUnsupportedMediaType, unreadable, encoded.Error())
		return
	}
	fail(w, http.StatusBadGateway, noAnswer, explain(x.upstream, err))
}

// explain says in words what went wrong with a destination.
func explain(up *upstream, err error) string {
	host := up.host
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		resolving    *net.DNSError
	)
	switch {
	case errors.As(err, &verification):
		return explainCertificate(host, verification.Err)
	case isAlert(err):
		return host + " refused the TLS handshake: " + err.Error()
	case errors.As(err, &record):
		return host + " does not speak TLS"
	case errors.As(err, &resolving):
		return resolving.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return host + " refused the connection"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return host + " cannot be reached from this server"
	case isTimeout(err):
		return host + " did not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return host + " closed the connection without an answer"
	}
	return host + ": " + err.Error()
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) || errors.As(err, &timeout) && timeout.Timeout()
}

func explainCertificate(host string, err error) string {
	var (
		name    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &name):
		return "the certificate of " + host + " is for another name: " + err.Error()
	case errors.As(err, &unknown):
		return "the certificate of " + host + " is by an authority that this server does not trust (its --ca-bundle and the machine's own): " + err.Error()
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate of " + host + " is not valid at this time: " + err.Error()
	}
	return "the certificate of " + host + " is not valid: " + err.Error()
}
