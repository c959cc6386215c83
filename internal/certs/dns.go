package certs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/libdns"
	"github.com/miekg/dns"
)

// DNSProvider sets and deletes the records that prove a domain is ours.
type DNSProvider = certmagic.DNSProvider

const (
	recordTTL     = 60 * time.Second
	updateTimeout = 2 * time.Minute // of one change
	maxHookOutput = 2000            // of what a program printed, in an error
)

// ParseDNSProvider reads how records are set: "exec:PROGRAM" or
// "rfc2136:SERVER[:PORT]". tsig, "name:algorithm:secret", signs the updates of
// RFC 2136; empty leaves them unsigned.
func ParseDNSProvider(s, tsig string) (DNSProvider, error) {
	kind, rest, _ := strings.Cut(s, ":")
	if rest != "" && kind == "exec" {
		program, err := exec.LookPath(rest)
		if err != nil {
			return nil, fmt.Errorf("program that sets DNS records: %w", err)
		}
		return hook{program}, nil
	}
	if rest != "" && kind == "rfc2136" {
		if _, _, err := net.SplitHostPort(rest); err != nil {
			rest = net.JoinHostPort(rest, "53")
		}
		key, err := parseTSIG(tsig)
		return updater{server: rest, key: key}, err
	}
	return nil, fmt.Errorf("%q is no way to set DNS records: use exec:PROGRAM or rfc2136:SERVER", s)
}

// hook runs a program as lego's "exec" provider does, so that programs made for
// that work: PROGRAM present|cleanup NAME VALUE, for a TXT record.
type hook struct{ program string }

func (h hook) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return h.run(ctx, "present", zone, records)
}

func (h hook) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return h.run(ctx, "cleanup", zone, records)
}

func (h hook) run(ctx context.Context, verb, zone string, records []libdns.Record) ([]libdns.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	for i, record := range records {
		rr := record.RR()
		cmd := exec.CommandContext(ctx, h.program, verb, libdns.AbsoluteName(rr.Name, zone), rr.Data)
		cmd.WaitDelay = time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			return records[:i], fmt.Errorf("%s %s: %w: %s", h.program, verb, err, out[max(0, len(out)-maxHookOutput):])
		}
	}
	return records, nil
}

// updater sends dynamic updates (RFC 2136) to a name server.
type updater struct {
	server string
	key    tsigKey
}

// tsigKey signs updates (RFC 8945); the zero key does not.
type tsigKey struct{ name, algorithm, secret string }

func parseTSIG(s string) (tsigKey, error) {
	if s == "" {
		return tsigKey{}, nil
	}
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 {
		return tsigKey{}, errors.New("the TSIG key must be name:algorithm:secret, as in tombolo:hmac-sha256:c2VjcmV0")
	}
	key := tsigKey{dns.CanonicalName(parts[0]), dns.Fqdn(strings.ToLower(parts[1])), parts[2]}
	switch key.algorithm {
	case dns.HmacSHA224, dns.HmacSHA256, dns.HmacSHA384, dns.HmacSHA512:
		return key, nil
	}
	return tsigKey{}, fmt.Errorf("TSIG algorithm %q: use hmac-sha256, or -224, -384 or -512", parts[1])
}

func (u updater) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return u.update(ctx, zone, records, (*dns.Msg).Insert)
}

func (u updater) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return u.update(ctx, zone, records, (*dns.Msg).Remove)
}

func (u updater) update(ctx context.Context, zone string, records []libdns.Record, change func(*dns.Msg, []dns.RR)) ([]libdns.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	msg := new(dns.Msg).SetUpdate(dns.Fqdn(zone))
	for _, record := range records {
		rr := record.RR()
		change(msg, []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: dns.Fqdn(libdns.AbsoluteName(rr.Name, zone)), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: uint32(recordTTL.Seconds())},
			Txt: []string{rr.Data}, // a digest of 43 characters
		}})
	}
	client := &dns.Client{Net: "tcp"}
	if u.key.name != "" {
		client.TsigSecret = map[string]string{u.key.name: u.key.secret}
		msg.SetTsig(u.key.name, u.key.algorithm, 300, time.Now().Unix())
	}
	answer, _, err := client.ExchangeContext(ctx, msg, u.server)
	if err != nil {
		return nil, fmt.Errorf("update %s at name server %s: %w", zone, u.server, err)
	}
	if answer.Rcode != dns.RcodeSuccess {
		return nil, fmt.Errorf("name server %s refuses the update of %s: %s", u.server, zone, dns.RcodeToString[answer.Rcode])
	}
	return records, nil
}
