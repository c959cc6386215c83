// Package secret keeps secrets that code in a sandbox uses and never has: encrypted
// on the disk, bound to where they may go, and known inside by a placeholder. It puts
// values into requests and takes them out of answers; the requests themselves are the
// gateway's.
package secret

import "time"

// Secret is all of a secret but its value, which nobody gets back.
type Secret struct {
	ID        string            `json:"id"` // "sec_…"
	KeyID     string            `json:"keyID"`
	Name      string            `json:"name"` // unique for its key, in lower case
	Version   int               `json:"version"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"createdAt"`
	UpdatedAt time.Time         `json:"updatedAt"`
	// Placeholder is what stands for the value inside. It is the same in all versions.
	Placeholder string `json:"placeholder"`
	// Bindings say into which requests the value may be put; none is nowhere by its
	// placeholder.
	Bindings []Binding `json:"bindings,omitempty"`
}

// Binding is where a value may go. Of each list one entry is enough; an empty list
// is no limit, but for Host, which must have one.
type Binding struct {
	Host   []string `json:"host" yaml:"host"` // as policy.Match.Host
	Method []string `json:"method,omitempty" yaml:"method,omitempty"`
	Path   []string `json:"path,omitempty" yaml:"path,omitempty"` // as policy.Match.Path
	// In names the headers, "?name" for parameters of the query and "body" for the body
	// that a placeholder is looked for in. Empty is every header.
	In []string `json:"in,omitempty" yaml:"in,omitempty"`
}
