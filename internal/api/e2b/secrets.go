package e2b

import (
	"errors"
	"net/http"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// wireSecret is all of a secret that is ever answered.
type wireSecret struct {
	SecretID       string            `json:"secretID"`
	Name           string            `json:"name"`
	CurrentVersion int               `json:"currentVersion"`
	Metadata       map[string]string `json:"metadata"` // always there
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
}

func newWireSecret(s secret.Secret) wireSecret {
	w := wireSecret{
		SecretID: s.ID, Name: s.Name, CurrentVersion: s.Version, Metadata: s.Metadata,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
	if w.Metadata == nil {
		w.Metadata = map[string]string{}
	}
	return w
}

func (a *api) secretRoutes() map[string]handler {
	return map[string]handler{
		"GET /secrets":         a.listSecrets,
		"POST /secrets":        a.createSecret,
		"GET /secrets/{id}":    a.getSecret,
		"POST /secrets/{id}":   a.updateSecret,
		"DELETE /secrets/{id}": a.deleteSecret,
	}
}

func (a *api) listSecrets(w http.ResponseWriter, r *http.Request, k store.Key) error {
	limit, after, err := parsePaging(r.URL.Query())
	if err != nil {
		return err
	}
	all, err := a.secrets.List(r.Context(), k.ID)
	if err != nil {
		return err
	}
	answer := []wireSecret{}
	for _, s := range page(w, all, func(s secret.Secret) cursor { return cursor{s.CreatedAt, s.ID} }, after, true, limit) {
		answer = append(answer, newWireSecret(s))
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// secretBody is that of a create or an update.
type secretBody struct {
	Name     string             `json:"name"`
	Value    secret.Value       `json:"value"`
	Metadata *map[string]string `json:"metadata"`
}

func (a *api) createSecret(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body secretBody
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	defer body.Value.Wipe()
	n := secret.New{Name: body.Name, Value: body.Value}
	if body.Metadata != nil {
		n.Metadata = *body.Metadata
	}
	s, err := a.secrets.Create(r.Context(), k.ID, n)
	if err != nil {
		return secretError(err)
	}
	record.Note(r.Context(), "secret", s.Name)
	writeJSON(w, http.StatusCreated, newWireSecret(s))
	return nil
}

func (a *api) getSecret(w http.ResponseWriter, r *http.Request, k store.Key) error {
	s, err := a.secrets.Get(r.Context(), k.ID, r.PathValue("id"))
	if err != nil {
		return secretError(err)
	}
	writeJSON(w, http.StatusOK, newWireSecret(s))
	return nil
}

func (a *api) updateSecret(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body secretBody
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	defer body.Value.Wipe()
	if body.Value.IsZero() && body.Metadata == nil {
		return invalid("give a value, metadata or both")
	}
	s, err := a.secrets.Update(r.Context(), k.ID, r.PathValue("id"), secret.Change{Value: body.Value, Metadata: body.Metadata})
	if err != nil {
		return secretError(err)
	}
	record.Note(r.Context(), "secret", s.Name)
	writeJSON(w, http.StatusOK, newWireSecret(s))
	return nil
}

func (a *api) deleteSecret(w http.ResponseWriter, r *http.Request, k store.Key) error {
	s, err := a.secrets.Delete(r.Context(), k.ID, r.PathValue("id"))
	if err != nil {
		return secretError(err)
	}
	record.Note(r.Context(), "secret", s.Name)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func secretError(err error) error {
	var bad *secret.InvalidError
	switch {
	case errors.As(err, &bad):
		return invalid("%s", bad.Message)
	case errors.Is(err, secret.ErrNotFound):
		return failure(http.StatusNotFound, "%s", err)
	case errors.Is(err, secret.ErrExists):
		return failure(http.StatusConflict, "%s; update it, or delete it first", err)
	case errors.Is(err, secret.ErrFull):
		e := failure(http.StatusTooManyRequests, "%s: delete one first", err)
		e.noRetry = true
		return e
	}
	return err
}
