package tombolo

import (
	"context"
	"net/url"

	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Vault is what the API needs of [secret.Vault].
type Vault interface {
	Create(ctx context.Context, keyID string, n secret.New) (secret.Secret, error)
	Update(ctx context.Context, keyID, idOrName string, c secret.Change) (secret.Secret, error)
	Delete(ctx context.Context, keyID, idOrName string) (secret.Secret, error)
	Get(ctx context.Context, keyID, idOrName string) (secret.Secret, error)
	List(ctx context.Context, keyID string) ([]secret.Secret, error)
}

// SecretRequest makes or changes a secret. Of a change, what is nil stays.
type SecretRequest struct {
	Name     string             `json:"name,omitempty"`  // of a new one
	Value    *string            `json:"value,omitempty"` // nobody gets it back
	Metadata *map[string]string `json:"metadata,omitempty"`
	Bindings *[]secret.Binding  `json:"bindings,omitempty"`
	// PlaceholderPrefix begins what stands for the value inside, for programs that look
	// at it: "ghp_". Of a new one.
	PlaceholderPrefix string `json:"placeholderPrefix,omitempty"`
}

func (a *API) secretRoutes() []route {
	own := []store.Role{store.RoleSandboxes}
	return []route{
		{"GET", "/secrets", own, a.Vault, a.listSecrets},
		{"POST", "/secrets", own, a.Vault, a.createSecret},
		{"GET", "/secrets/{name}", own, a.Vault, a.getSecret},
		{"PUT", "/secrets/{name}", own, a.Vault, a.updateSecret},
		{"DELETE", "/secrets/{name}", own, a.Vault, a.deleteSecret},
	}
}

// secretsOf is the key whose secrets a request is about: the caller's own, or the one
// that the owner names.
func (a *API) secretsOf(c *call, all bool) (keyID string, err error) {
	q := c.r.URL.Query()
	if err := checkQuery(q, "key"); err != nil {
		return "", err
	}
	named := q.Get("key")
	switch {
	case !c.auth.IsOwner() && named != "" && named != c.auth.KeyID():
		return "", notFound("there is no key %.60q", named)
	case !c.auth.IsOwner():
		return c.auth.KeyID(), nil
	case named == "" && !all:
		return "", invalid("say whose secret it is: ?key=ID is that of a key, see `tombolo key list`")
	case named == "":
		return "", nil
	}
	keys, err := a.Store.Keys(c.context())
	if err != nil {
		return "", err
	}
	for _, k := range keys {
		if k.ID == named {
			return named, nil
		}
	}
	return "", notFound("there is no key with the id %.60q", named)
}

func (a *API) listSecrets(c *call) (any, error) {
	keyID, err := a.secretsOf(c, true)
	if err != nil {
		return nil, err
	}
	list, err := a.Vault.List(c.context(), keyID)
	return append([]secret.Secret{}, list...), err
}

func (a *API) createSecret(c *call) (any, error) {
	keyID, err := a.secretsOf(c, false)
	if err != nil {
		return nil, err
	}
	var body SecretRequest
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	n := secret.New{Name: body.Name, Value: body.value(), PlaceholderPrefix: body.PlaceholderPrefix}
	defer n.Value.Wipe()
	if body.Metadata != nil {
		n.Metadata = *body.Metadata
	}
	if body.Bindings != nil {
		n.Bindings = *body.Bindings
	}
	return a.Vault.Create(c.context(), keyID, n)
}

func (r SecretRequest) value() secret.Value {
	if r.Value == nil {
		return secret.Value{}
	}
	return secret.NewValue([]byte(*r.Value))
}

func (a *API) getSecret(c *call) (any, error) {
	keyID, err := a.secretsOf(c, false)
	if err != nil {
		return nil, err
	}
	return a.Vault.Get(c.context(), keyID, c.r.PathValue("name"))
}

func (a *API) updateSecret(c *call) (any, error) {
	keyID, err := a.secretsOf(c, false)
	if err != nil {
		return nil, err
	}
	var body SecretRequest
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	if body.Name != "" || body.PlaceholderPrefix != "" {
		return nil, invalid("a secret keeps its name and placeholder: make another one")
	}
	change := secret.Change{Value: body.value(), Metadata: body.Metadata, Bindings: body.Bindings}
	defer change.Value.Wipe()
	return a.Vault.Update(c.context(), keyID, c.r.PathValue("name"), change)
}

func (a *API) deleteSecret(c *call) (any, error) {
	keyID, err := a.secretsOf(c, false)
	if err != nil {
		return nil, err
	}
	_, err = a.Vault.Delete(c.context(), keyID, c.r.PathValue("name"))
	return nil, err
}

// Secrets lists the secrets of a key, without their values. keyID is for the owner; empty
// there lists those of all keys.
func (c *Client) Secrets(ctx context.Context, keyID string) (list []secret.Secret, err error) {
	return list, c.do(ctx, "GET", "/secrets"+keyQuery(keyID), nil, &list)
}

// Secret finds one by id or name.
func (c *Client) Secret(ctx context.Context, keyID, idOrName string) (s secret.Secret, err error) {
	return s, c.do(ctx, "GET", "/secrets/"+url.PathEscape(idOrName)+keyQuery(keyID), nil, &s)
}

// CreateSecret makes a secret.
func (c *Client) CreateSecret(ctx context.Context, keyID string, req SecretRequest) (s secret.Secret, err error) {
	return s, c.do(ctx, "POST", "/secrets"+keyQuery(keyID), req, &s)
}

// UpdateSecret changes a secret; a value given is its new version.
func (c *Client) UpdateSecret(ctx context.Context, keyID, idOrName string, req SecretRequest) (s secret.Secret, err error) {
	return s, c.do(ctx, "PUT", "/secrets/"+url.PathEscape(idOrName)+keyQuery(keyID), req, &s)
}

// DeleteSecret removes a secret with all its versions.
func (c *Client) DeleteSecret(ctx context.Context, keyID, idOrName string) error {
	return c.do(ctx, "DELETE", "/secrets/"+url.PathEscape(idOrName)+keyQuery(keyID), nil, nil)
}

func keyQuery(keyID string) string {
	if keyID == "" {
		return ""
	}
	return "?" + url.Values{"key": {keyID}}.Encode()
}
