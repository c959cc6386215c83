package e2b

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// wireVolume answers what is asked about a volume; the token only when it is asked
// for by its id. SizeMB and DiskMB are ours.
type wireVolume struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
	Token    string `json:"token,omitempty"`
	// Domain is where its content is served, at https://api.<Domain>.
	Domain string `json:"domain,omitempty"`
	SizeMB int64  `json:"sizeMB"`
	DiskMB int64  `json:"diskMB"` // on the server's disk
}

// volumeMount is one of a sandbox's.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

func volumeMounts(mounts []sandbox.VolumeMount) []volumeMount {
	all := make([]volumeMount, 0, len(mounts)) // clients want a list
	for _, v := range mounts {
		all = append(all, volumeMount{Name: v.Name, Path: v.Path})
	}
	return all
}

func coreMounts(mounts []volumeMount) []sandbox.VolumeMount {
	var all []sandbox.VolumeMount
	for _, v := range mounts {
		all = append(all, sandbox.VolumeMount{Name: v.Name, Path: v.Path})
	}
	return all
}

func (a *api) wireVolume(v store.Volume) wireVolume {
	return wireVolume{
		VolumeID: v.ID, Name: v.Name, SizeMB: v.SizeBytes / mib, DiskMB: a.volumes.VolumeDiskBytes(v.ID) / mib,
	}
}

// withToken is for who may read and write its content.
func (a *api) withToken(v store.Volume) wireVolume {
	answer := a.wireVolume(v)
	answer.Token, answer.Domain = v.Token, a.domain
	return answer
}

func (a *api) volumeRoutes() map[string]handler {
	return map[string]handler{
		"GET /volumes":         a.listVolumes,
		"POST /volumes":        a.createVolume,
		"GET /volumes/{id}":    a.getVolume,
		"DELETE /volumes/{id}": a.deleteVolume,
	}
}

func (a *api) listVolumes(w http.ResponseWriter, r *http.Request, k store.Key) error {
	volumes, err := a.store.Volumes(r.Context(), k.ID)
	if err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	answer := make([]wireVolume, 0, len(volumes))
	for _, v := range volumes {
		answer = append(answer, a.wireVolume(v))
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (a *api) createVolume(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Name   string `json:"name"`
		SizeMB int64  `json:"sizeMB"` // ours; 0 is the server's default
	}
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	if body.SizeMB < 0 || body.SizeMB > 1<<40/mib {
		return invalid("sizeMB cannot be %d", body.SizeMB)
	}
	v, err := a.volumes.CreateVolume(r.Context(), k.ID, sandbox.QuotaOf(k), body.Name, body.SizeMB*mib)
	if err != nil {
		return fmt.Errorf("create volume %q: %w", body.Name, err)
	}
	record.Note(r.Context(), "volume", v.ID)
	writeJSON(w, http.StatusCreated, a.withToken(v))
	return nil
}

func (a *api) getVolume(w http.ResponseWriter, r *http.Request, k store.Key) error {
	v, err := a.ownVolume(r, k)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, a.withToken(v))
	return nil
}

func (a *api) deleteVolume(w http.ResponseWriter, r *http.Request, k store.Key) error {
	v, err := a.ownVolume(r, k)
	if err != nil {
		return err
	}
	if err := a.volumes.DeleteVolume(r.Context(), v.ID); err != nil {
		return fmt.Errorf("delete volume %s: %w", v.ID, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) ownVolume(r *http.Request, k store.Key) (store.Volume, error) {
	v, err := a.store.Volume(r.Context(), k.ID, r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		return store.Volume{}, failure(http.StatusNotFound, "volume '%.64s' not found", r.PathValue("id"))
	}
	return v, err
}
