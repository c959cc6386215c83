package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

// config is what flags, TOMBOLO_* variables and tombolo.yaml may set, in this
// order of precedence. The names are those of the flags; a variable has them in
// capitals with _ for -.
type config struct {
	Data     string `koanf:"data"`
	Listen   string `koanf:"listen"`
	CABundle string `koanf:"ca-bundle"`
	Mirror   string `koanf:"mirror"`
	Platform string `koanf:"platform"`
	LogLevel string `koanf:"log-level"`
	OnStop   string `koanf:"on-stop"`
	Pool     int    `koanf:"pool"`
	// VolumeSize is what volumes have that are made without a size.
	VolumeSize string `koanf:"volume-size"`
	// PrivateRegistries may be on private addresses and speak http.
	PrivateRegistries []string `koanf:"private-registry"`

	// See addTLSFlags.
	Domain        string `koanf:"domain"`
	TLSCert       string `koanf:"tls-cert"`
	TLSKey        string `koanf:"tls-key"`
	ACMEEmail     string `koanf:"acme-email"`
	ACMEDNS       string `koanf:"acme-dns"`
	ACMEDirectory string `koanf:"acme-directory"`
	ACMEResolvers string `koanf:"acme-resolvers"`
	// ACMETSIG is the key of acme-dns rfc2136, name:algorithm:secret. It has no
	// flag, which others on the machine could read.
	ACMETSIG string `koanf:"acme-tsig"`

	MetricsListen string `koanf:"metrics-listen"`
	OTLPEndpoint  string `koanf:"otlp-endpoint"`

	// EgressProxy is what connections out of sandboxes go through; see parseProxy.
	EgressProxy string `koanf:"egress-proxy"`

	AuditKeep string `koanf:"audit-keep"`
	// AuditProcesses records every program that is started in a sandbox.
	AuditProcesses bool `koanf:"audit-processes"`

	WebhookAllowPrivate bool   `koanf:"webhook-allow-private"`
	ApprovalWebhook     string `koanf:"approval-webhook"`
	ApprovalTimeout     string `koanf:"approval-timeout"`
}

// defaultData is the data folder where none is named.
const defaultData = "/var/lib/tombolo"

// configFile is read from the current folder and from /etc/tombolo.
const configFile = "tombolo.yaml"

// addConfigFlags gives every command the settings above.
func addConfigFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.String("data", defaultData, "data folder")
	flags.String("ca-bundle", "/etc/ssl/certs/ca-certificates.crt", "PEM file of the certificates sandboxes trust; empty for the image's own")
	flags.String("mirror", "", "Debian mirror for template builds (default: Debian's own)")
	flags.StringSlice("private-registry", nil, "HOST:PORT of a registry on a private address that images may come from, over http too; repeatable")
	flags.String("platform", "systrap", "how gVisor intercepts system calls: systrap or kvm")
	flags.String("volume-size", image.Size(volume.DefaultSize).String(), "what may be in a volume that is made without a size")
	flags.String("egress-proxy", "", "proxy that connections out of sandboxes go through, socks5://HOST:PORT or http://HOST:PORT; with a password, set TOMBOLO_EGRESS_PROXY instead")
	flags.Bool("audit-processes", true, "record every program that is started in a sandbox in the audit log")
	flags.String("log-level", "warn", "debug, info, warn or error")
}

func loadConfig(cmd *cobra.Command) (config, error) {
	k := koanf.New(".")
	for _, path := range []string{filepath.Join("/etc/tombolo", configFile), configFile} {
		err := k.Load(file.Provider(path), yaml.Parser())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return config{}, fmt.Errorf("read %s: %w", path, err)
		}
		if unknown := unknownSetting(k.Keys()); unknown != "" {
			return config{}, fmt.Errorf("%s: there is no setting %q", path, unknown)
		}
	}
	variables := env.Provider(".", env.Opt{Prefix: "TOMBOLO_", TransformFunc: func(name, value string) (string, any) {
		setting, _ := settingOf(name)
		if setting == "private-registry" {
			return setting, strings.Split(value, ",")
		}
		return setting, value
	}})
	if err := k.Load(variables, nil); err != nil {
		return config{}, err
	}
	if err := k.Load(posflag.Provider(cmd.Flags(), ".", k), nil); err != nil {
		return config{}, err
	}
	var c config
	if err := k.Unmarshal("", &c); err != nil {
		return config{}, fmt.Errorf("configuration: %w", err)
	}
	if c.Data == "" {
		return config{}, errors.New("the data folder is empty; set it by --data, TOMBOLO_DATA or in tombolo.yaml")
	}
	absolute, err := filepath.Abs(c.Data)
	if err != nil {
		return config{}, err
	}
	c.Data = absolute
	if c.CABundle != "" && !cmd.Flags().Changed("ca-bundle") {
		if _, err := os.Stat(c.CABundle); errors.Is(err, fs.ErrNotExist) {
			c.CABundle = ""
		}
	}
	return c, nil
}

// otherVariables begin like settings and are none.
var otherVariables = []string{"TOMBOLO_API_KEY", "TOMBOLO_BIN"}

// warnOfVariables tells of variables that look like settings: a mistyped one would
// else do nothing, unseen.
func warnOfVariables(environment []string, to io.Writer) {
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		setting, is := settingOf(name)
		if !is || slices.Contains(otherVariables, name) || strings.HasPrefix(name, "TOMBOLO_TEST_") {
			continue
		}
		if unknownSetting([]string{setting}) != "" {
			fmt.Fprintf(to, "tombolo: there is no setting for the variable %s, so it does nothing\n", name)
		}
	}
}

// settingOf is the setting that a variable would set.
func settingOf(variable string) (setting string, is bool) {
	name, is := strings.CutPrefix(variable, "TOMBOLO_")
	return strings.ReplaceAll(strings.ToLower(name), "_", "-"), is
}

// unknownSetting finds a key that config does not have, or returns "".
func unknownSetting(keys []string) string {
	known := map[string]bool{}
	for field := range reflect.TypeFor[config]().Fields() {
		known[field.Tag.Get("koanf")] = true
	}
	for _, key := range keys {
		if !known[key] {
			return key
		}
	}
	return ""
}
