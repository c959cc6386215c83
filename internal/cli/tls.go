package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/certs"
	"github.com/tombolo-dev/tombolo/internal/edge"
)

func newTLS() *cobra.Command {
	return group(&cobra.Command{Use: "tls", Short: "Make a certificate authority for https on this machine"}, newTLSInit())
}

func newTLSInit() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a private certificate authority, which the server uses from its next start",
		Long: `Make a private certificate authority in the data folder and say how to trust it.
From its next start on, the server speaks https as well as http on its port, and
reaches every sandbox under a name of its own: <port>-<id>.DOMAIN.

The authority can only certify names below DOMAIN and this machine itself, so
whoever trusts it trusts it for no other site.

  sbx.localhost      browsers and curl find such names by themselves (default)
  127.0.0.1.nip.io   every program finds them, by asking nip.io's name servers
  sbx.example.com    where *.sbx.example.com leads to this machine`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			domain, err := certs.ParseDomain(c.Domain)
			if err != nil {
				return fmt.Errorf("--domain: %w", err)
			}
			// Others reach the certificate; the log alone would make the folder root's.
			if err := os.MkdirAll(c.Data, 0o711); err != nil {
				return fmt.Errorf("make the data folder: %w", err)
			}
			made := false
			err = withTrail(c, func(t trail) (err error) {
				if made, err = certs.InitAuthority(c.Data, domain, replace); made {
					t.changed("tls init", "", target{"domain": domain.Name, "replace": replace})
				}
				return err
			})
			if err != nil {
				return err
			}
			explainTrust(cmd.OutOrStdout(), certs.AuthorityFile(c.Data), domain.Name, made)
			return nil
		},
	}
	cmd.Flags().String("domain", "sbx.localhost", "the domain that sandboxes have names below")
	cmd.Flags().BoolVar(&replace, "replace", false, "make a new authority where there is one; it has to be trusted anew")
	return cmd
}

// explainTrust prints how the authority's certificate is trusted.
func explainTrust(w io.Writer, file, domain string, made bool) {
	first := "There is an authority for " + domain + " already: " + file
	if made {
		first = "Made an authority for " + domain + ": " + file
	}
	fmt.Fprintf(w, `%s

Start the server again, and https://<port>-<sandbox id>.%s:<port of the server>/ leads
into a sandbox. Whoever uses it has to trust %[3]s:

Debian, Ubuntu   sudo cp %[3]s /usr/local/share/ca-certificates/tombolo.crt && sudo update-ca-certificates
macOS            sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain %[3]s
Firefox          Settings, Certificates, Import
Chrome on Linux  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n tombolo -i %[3]s
Node             export NODE_EXTRA_CA_CERTS=%[3]s     ("tombolo env" has it)
Python           httpx.Client(verify=ssl.create_default_context(cafile="%[3]s")), requests.get(url, verify="%[3]s")
E2B for Python   export SSL_CERT_FILE=%[3]s            (where it goes to https; it trusts nothing else then)
curl             curl --cacert %[3]s
`, first, domain, file)
}

// addTLSFlags gives serve the settings of https.
func addTLSFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("domain", "", "domain whose names <port>-<id>.DOMAIN lead to this server by https, with :port where clients need another than the server's")
	flags.String("tls-cert", "", "PEM file of the certificate for *.DOMAIN, with its chain; read again when it changes")
	flags.String("tls-key", "", "PEM file of the certificate's key")
	flags.String("acme-email", "", "get the certificate from Let's Encrypt, whose terms you accept by giving your address")
	flags.String("acme-dns", "", "how the DNS records are set that prove the domain is yours: exec:PROGRAM or rfc2136:SERVER")
	flags.String("acme-directory", "", "URL of another ACME authority")
	flags.String("acme-resolvers", "", "name servers, host:port with commas, that are asked whether a record is there (default: the machine's)")
}

// secureFront is how the server is reached by https.
type secureFront struct {
	source certs.Source // nil: the server does not speak TLS
	domain certs.Domain // zero: sandboxes have no names
	caFile string       // of a private authority
	close  func()
}

// openTLS decides by the settings where the certificate comes from: files, ACME,
// the authority of `tombolo tls init`, or nowhere.
func openTLS(ctx context.Context, c config, log *slog.Logger) (_ *secureFront, err error) {
	front := &secureFront{close: func() {}}
	if c.Domain != "" {
		if front.domain, err = certs.ParseDomain(c.Domain); err != nil {
			return nil, fmt.Errorf("--domain: %w", err)
		}
	}
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return nil, errors.New("--tls-cert and --tls-key belong together: give both or none")
	case c.TLSCert != "" && c.ACMEEmail != "":
		return nil, errors.New("--tls-cert and --acme-email are two ways to a certificate: give one")
	case c.ACMEEmail == "" && c.ACMEDNS != "":
		return nil, errors.New("--acme-dns needs --acme-email, the address for the authority")
	case c.TLSCert != "":
		return front, front.useFiles(c, log)
	case c.ACMEEmail != "":
		return front, front.useACME(ctx, c, log)
	}
	return front, front.useAuthority(c)
}

func (f *secureFront) useFiles(c config, log *slog.Logger) error {
	files, err := certs.OpenFiles(c.TLSCert, c.TLSKey, log)
	if err != nil {
		return err
	}
	f.source = files
	if f.domain.Name == "" {
		return nil
	}
	certificate, err := files.GetCertificate(nil)
	if err != nil {
		return err
	}
	if err := certificate.Leaf.VerifyHostname("8000-i." + f.domain.Name); err != nil {
		return fmt.Errorf("--tls-cert %s does not fit --domain: it must be for *.%s: %w", c.TLSCert, f.domain.Name, err)
	}
	return nil
}

func (f *secureFront) useACME(ctx context.Context, c config, log *slog.Logger) error {
	if f.domain.Name == "" || c.ACMEDNS == "" {
		return errors.New("--acme-email needs --domain, and --acme-dns to prove that the domain is yours: wildcard certificates are given for DNS records only")
	}
	provider, err := certs.ParseDNSProvider(c.ACMEDNS, c.ACMETSIG)
	if err != nil {
		return fmt.Errorf("--acme-dns: %w", err)
	}
	var resolvers []string
	if c.ACMEResolvers != "" {
		resolvers = strings.Split(c.ACMEResolvers, ",")
	}
	source, err := certs.OpenACME(ctx, certs.ACMEConfig{
		Domain:    f.domain,
		Email:     c.ACMEEmail,
		DNS:       provider,
		Directory: c.ACMEDirectory,
		Resolvers: resolvers,
		Dir:       filepath.Join(c.Data, "keys", "acme"),
		Log:       log,
	})
	if err != nil {
		return err
	}
	f.source, f.close = source, source.Close
	return nil
}

// useAuthority uses the private authority where there is one. Without, something
// in front of the server may speak TLS for the domain.
func (f *secureFront) useAuthority(c config) error {
	authority, err := certs.OpenAuthority(c.Data)
	if errors.Is(err, certs.ErrNoAuthority) {
		return nil
	}
	if err != nil {
		return err
	}
	of := authority.Domain()
	if f.domain.Name != "" && f.domain.Name != of.Name {
		return fmt.Errorf("--domain %s: the private authority of this data folder is for %s; `tombolo tls init --replace --domain %s` makes another, --tls-cert takes a certificate, and where something in front of the server speaks TLS, delete %s",
			f.domain.Name, of.Name, f.domain.Name, certs.AuthorityFile(c.Data))
	}
	f.domain.Name = of.Name
	f.source, f.caFile = authority, certs.AuthorityFile(c.Data)
	return nil
}

// config is nil when the server does not speak TLS.
func (f *secureFront) config() *tls.Config {
	if f.source == nil {
		return nil
	}
	return certs.Config(f.source)
}

// handler keeps keys off the network where there is a better way.
func (f *secureFront) handler(h http.Handler) http.Handler {
	if f.source == nil {
		return h
	}
	return edge.OnlyLocalPlain(h)
}

// clientDomain is what clients are told: with the port where it is not that of
// https. Where the server speaks TLS itself, its own port is meant unless the
// setting says another.
func (f *secureFront) clientDomain(listen net.Addr) string {
	if f.domain.Name == "" {
		return ""
	}
	port := f.domain.Port
	if tcp, ok := listen.(*net.TCPAddr); ok && port == 0 && f.source != nil {
		port = uint16(tcp.Port)
	}
	if port == 0 || port == 443 {
		return f.domain.Name
	}
	return f.domain.Name + ":" + strconv.Itoa(int(port))
}
