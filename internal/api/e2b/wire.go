package e2b

import (
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// clientID is required by clients' models and means nothing any more.
const clientID = "tombolo"

const mib = 1 << 20

// createdSandbox answers create and connect.
type createdSandbox struct {
	TemplateID      string `json:"templateID"`
	SandboxID       string `json:"sandboxID"`
	Alias           string `json:"alias,omitempty"`
	ClientID        string `json:"clientID"`
	EnvdVersion     string `json:"envdVersion"`
	EnvdAccessToken string `json:"envdAccessToken,omitempty"`
	Domain          string `json:"domain,omitempty"`
}

func (a *api) created(info sandbox.Info) createdSandbox {
	return createdSandbox{
		TemplateID:      info.TemplateID,
		SandboxID:       info.ID,
		Alias:           info.TemplateName,
		ClientID:        clientID,
		EnvdVersion:     hostapi.EnvdVersion,
		EnvdAccessToken: info.AccessToken,
		Domain:          a.domain,
	}
}

// listedSandbox is an element of the lists.
type listedSandbox struct {
	TemplateID   string            `json:"templateID"`
	SandboxID    string            `json:"sandboxID"`
	Alias        string            `json:"alias,omitempty"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	State        sandbox.State     `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	Metadata     map[string]string `json:"metadata"`
	VolumeMounts []struct{}        `json:"volumeMounts"`
}

func listed(info sandbox.Info) listedSandbox {
	metadata := info.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return listedSandbox{
		TemplateID:   info.TemplateID,
		SandboxID:    info.ID,
		Alias:        info.TemplateName,
		ClientID:     clientID,
		StartedAt:    info.StartedAt.UTC(),
		EndAt:        info.EndAt.UTC(),
		CPUCount:     info.CPUs,
		MemoryMB:     info.MemoryBytes / mib,
		DiskSizeMB:   info.DiskBytes / mib,
		State:        info.State,
		EnvdVersion:  hostapi.EnvdVersion,
		Metadata:     metadata,
		VolumeMounts: []struct{}{},
	}
}

// sandboxDetail answers get.
type sandboxDetail struct {
	listedSandbox
	EnvdAccessToken     string    `json:"envdAccessToken,omitempty"`
	AllowInternetAccess bool      `json:"allowInternetAccess"`
	Domain              string    `json:"domain,omitempty"`
	Lifecycle           lifecycle `json:"lifecycle"`
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"` // "kill" or "pause"
	AutoResume bool   `json:"autoResume"`
}

func (a *api) detail(info sandbox.Info) sandboxDetail {
	return sandboxDetail{
		listedSandbox:       listed(info),
		EnvdAccessToken:     info.AccessToken,
		AllowInternetAccess: !info.Network.DenyInternet,
		Domain:              a.domain,
		Lifecycle:           lifecycle{OnTimeout: "kill"},
	}
}
