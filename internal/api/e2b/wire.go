package e2b

import (
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// clientID is required by clients' models and means nothing any more.
const clientID = "tombolo"

const mib = 1 << 20

// createdSandbox answers create, connect, resume and fork.
type createdSandbox struct {
	TemplateID      string `json:"templateID"`
	SandboxID       string `json:"sandboxID"`
	Alias           string `json:"alias,omitempty"`
	ClientID        string `json:"clientID"`
	EnvdVersion     string `json:"envdVersion"`
	EnvdAccessToken string `json:"envdAccessToken,omitempty"`
	// TrafficAccessToken opens the ports of a sandbox without public traffic.
	TrafficAccessToken string `json:"trafficAccessToken,omitempty"`
	Domain             string `json:"domain,omitempty"`
}

func (a *api) created(info sandbox.Info) createdSandbox {
	answer := createdSandbox{
		TemplateID:      info.TemplateID,
		SandboxID:       info.ID,
		Alias:           alias(info),
		ClientID:        clientID,
		EnvdVersion:     hostapi.EnvdVersion,
		EnvdAccessToken: info.AccessToken,
		Domain:          a.domain,
	}
	if info.Network.PrivateTraffic {
		answer.TrafficAccessToken = info.TrafficToken
	}
	return answer
}

// alias is the name of a sandbox's template without its tag.
func alias(info sandbox.Info) string { return store.SplitName(info.TemplateName).Alias }

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
	VolumeMounts []volumeMount     `json:"volumeMounts"`
}

func listed(info sandbox.Info) listedSandbox {
	metadata := info.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return listedSandbox{
		TemplateID:   info.TemplateID,
		SandboxID:    info.ID,
		Alias:        alias(info),
		ClientID:     clientID,
		StartedAt:    info.StartedAt.UTC(),
		EndAt:        info.EndAt.UTC(),
		CPUCount:     info.CPUs,
		MemoryMB:     info.MemoryBytes / mib,
		DiskSizeMB:   info.DiskBytes / mib,
		State:        wireState(info.State),
		EnvdVersion:  hostapi.EnvdVersion,
		Metadata:     metadata,
		VolumeMounts: volumeMounts(info.Volumes),
	}
}

// sandboxDetail answers get.
type sandboxDetail struct {
	listedSandbox
	EnvdAccessToken     string    `json:"envdAccessToken,omitempty"`
	AllowInternetAccess bool      `json:"allowInternetAccess"`
	Domain              string    `json:"domain,omitempty"`
	Lifecycle           lifecycle `json:"lifecycle"`
	Network             network   `json:"network"`
	PauseMode           string    `json:"pauseMode,omitempty"` // what the pause saved: "full" or "filesystem"
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"` // "kill" or "pause"
	AutoResume bool   `json:"autoResume"`
}

func (a *api) detail(info sandbox.Info) sandboxDetail {
	answer := sandboxDetail{
		listedSandbox:       listed(info),
		EnvdAccessToken:     info.AccessToken,
		AllowInternetAccess: !info.Network.DenyInternet,
		Domain:              a.domain,
		Lifecycle:           lifecycle{OnTimeout: "kill", AutoResume: info.Lifecycle.AutoResume},
		Network:             networkInForce(info.Network),
	}
	if info.Lifecycle.PauseOnTimeout {
		answer.Lifecycle.OnTimeout = "pause"
	}
	if info.State == sandbox.Paused {
		answer.PauseMode = "full"
		if info.DiskOnly {
			answer.PauseMode = "filesystem"
		}
	}
	return answer
}
