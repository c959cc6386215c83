package mcpgateway

import (
	"fmt"
	"maps"
	"slices"
)

// server says how one server of the catalogue is had and started. The names, and
// those of the configuration keys, are those of the Docker MCP catalogue, which
// is what the E2B clients' types list.
type server struct {
	npm  string // the package that has it, of npm …
	pypi string // … or of PyPI
	with string // a requirement that the package forgets to state
	bin  string // the program in it
	args []string
	env  map[string]string // always set; ~/ is the home of who it runs as
	keys map[string]key    // what a caller may configure
}

// key says where the value of a configuration key goes.
type key struct {
	env      string // an environment variable of this name
	flag     string // or an argument of this name, the value follows
	alone    bool   // … when there is one value only
	args     bool   // or arguments by themselves
	required bool
}

func required(env string) key { return key{env: env, required: true} }
func optional(env string) key { return key{env: env} }

// catalogue are the servers known by name. All of them are real packages that
// speak MCP over their standard streams.
var catalogue = map[string]server{
	// No account needed.
	"arxiv": {pypi: "arxiv-mcp-server", bin: "arxiv-mcp-server", keys: map[string]key{
		"storagePath": {flag: "--storage-path"},
	}},
	"awsDocumentation": {
		pypi: "awslabs.aws-documentation-mcp-server", bin: "awslabs.aws-documentation-mcp-server",
		env: map[string]string{"FASTMCP_LOG_LEVEL": "ERROR"},
	},
	"desktopCommander": {npm: "@wonderwhy-er/desktop-commander", bin: "desktop-commander"},
	"duckduckgo":       {pypi: "duckduckgo-mcp-server", bin: "duckduckgo-mcp-server"},
	"everything":       {npm: "@modelcontextprotocol/server-everything", bin: "mcp-server-everything", args: []string{"stdio"}},
	"fetch":            {pypi: "mcp-server-fetch", bin: "mcp-server-fetch"},
	"filesystem": {npm: "@modelcontextprotocol/server-filesystem", bin: "mcp-server-filesystem", keys: map[string]key{
		"paths": {args: true, required: true},
	}},
	"git": {pypi: "mcp-server-git", bin: "mcp-server-git", keys: map[string]key{"paths": {flag: "--repository", alone: true}}},
	"memory": {
		npm: "@modelcontextprotocol/server-memory", bin: "mcp-server-memory",
		env: map[string]string{"MEMORY_FILE_PATH": "~/.mcp-memory.jsonl"}, // without it, where it is installed
	},
	"nextDevtools":       {npm: "next-devtools-mcp", bin: "next-devtools-mcp"},
	"openbnbAirbnb":      {npm: "@openbnb/mcp-server-airbnb", bin: "mcp-server-airbnb"},
	"sequentialthinking": {npm: "@modelcontextprotocol/server-sequential-thinking", bin: "mcp-server-sequential-thinking"},
	"sqlite":             {pypi: "mcp-server-sqlite", with: "mcp<2", bin: "mcp-server-sqlite", args: []string{"--db-path", "sqlite.db"}},
	"time":               {pypi: "mcp-server-time", bin: "mcp-server-time", args: []string{"--local-timezone", "Etc/UTC"}},
	"wikipedia":          {pypi: "wikipedia-mcp", bin: "wikipedia-mcp"},

	// With a key of one's own.
	"airtable": {npm: "airtable-mcp-server", bin: "airtable-mcp-server", keys: map[string]key{
		"airtableApiKey": required("AIRTABLE_API_KEY"), "nodeenv": optional("NODE_ENV"),
	}},
	"apify": {npm: "@apify/actors-mcp-server", bin: "actors-mcp-server", keys: map[string]key{
		"apifyToken": required("APIFY_TOKEN"), "tools": {flag: "--tools"},
	}},
	"atlassian": {pypi: "mcp-atlassian", bin: "mcp-atlassian", keys: map[string]key{
		"confluenceUrl": optional("CONFLUENCE_URL"), "confluenceUsername": optional("CONFLUENCE_USERNAME"),
		"confluenceApiToken": optional("CONFLUENCE_API_TOKEN"), "confluencePersonalToken": optional("CONFLUENCE_PERSONAL_TOKEN"),
		"jiraUrl": optional("JIRA_URL"), "jiraUsername": optional("JIRA_USERNAME"),
		"jiraApiToken": optional("JIRA_API_TOKEN"), "jiraPersonalToken": optional("JIRA_PERSONAL_TOKEN"),
	}},
	"brave": {
		npm: "@brave/brave-search-mcp-server", bin: "brave-search-mcp-server", args: []string{"--transport", "stdio"},
		keys: map[string]key{"apiKey": required("BRAVE_API_KEY")},
	},
	"browserbase": {npm: "@browserbasehq/mcp-server-browserbase", bin: "mcp-server-browserbase", keys: map[string]key{
		"apiKey": required("BROWSERBASE_API_KEY"), "projectId": required("BROWSERBASE_PROJECT_ID"),
		"geminiApiKey": required("GEMINI_API_KEY"),
	}},
	"context7": {npm: "@upstash/context7-mcp", bin: "context7-mcp", keys: map[string]key{"apiKey": optional("CONTEXT7_API_KEY")}},
	"elasticsearch": {npm: "@elastic/mcp-server-elasticsearch", bin: "mcp-server-elasticsearch", keys: map[string]key{
		"url": required("ES_URL"), "esApiKey": optional("ES_API_KEY"),
	}},
	"elevenlabs": {pypi: "elevenlabs-mcp", bin: "elevenlabs-mcp", keys: map[string]key{
		"apiKey": required("ELEVENLABS_API_KEY"), "data": optional("ELEVENLABS_MCP_BASE_PATH"),
	}},
	"exa": {npm: "exa-mcp-server", bin: "exa-mcp-server", keys: map[string]key{"apiKey": required("EXA_API_KEY")}},
	"firecrawl": {npm: "firecrawl-mcp", bin: "firecrawl-mcp", keys: map[string]key{
		"apiKey": required("FIRECRAWL_API_KEY"), "url": optional("FIRECRAWL_API_URL"),
		"retryMax": optional("FIRECRAWL_RETRY_MAX_ATTEMPTS"), "retryDelay": optional("FIRECRAWL_RETRY_INITIAL_DELAY"),
		"retryMaxDelay": optional("FIRECRAWL_RETRY_MAX_DELAY"), "retryBackoffFactor": optional("FIRECRAWL_RETRY_BACKOFF_FACTOR"),
		"creditWarningThreshold":  optional("FIRECRAWL_CREDIT_WARNING_THRESHOLD"),
		"creditCriticalThreshold": optional("FIRECRAWL_CREDIT_CRITICAL_THRESHOLD"),
	}},
	"github": {npm: "@modelcontextprotocol/server-github", bin: "mcp-server-github", keys: map[string]key{
		"personalAccessToken": required("GITHUB_PERSONAL_ACCESS_TOKEN"),
	}},
	"googleMaps": {npm: "@modelcontextprotocol/server-google-maps", bin: "mcp-server-google-maps", keys: map[string]key{
		"googleMapsApiKey": required("GOOGLE_MAPS_API_KEY"),
	}},
	"mongodb": {npm: "mongodb-mcp-server", bin: "mongodb-mcp-server", keys: map[string]key{
		"mdbMcpConnectionString": required("MDB_MCP_CONNECTION_STRING"),
	}},
	"notion": {npm: "@notionhq/notion-mcp-server", bin: "notion-mcp-server", keys: map[string]key{
		"internalIntegrationToken": required("NOTION_TOKEN"),
	}},
	"perplexityAsk": {npm: "@perplexity-ai/mcp-server", bin: "perplexity-mcp", keys: map[string]key{
		"perplexityApiKey": required("PERPLEXITY_API_KEY"),
	}},
	"slack": {npm: "@modelcontextprotocol/server-slack", bin: "mcp-server-slack", keys: map[string]key{
		"botToken": required("SLACK_BOT_TOKEN"), "teamId": required("SLACK_TEAM_ID"), "channelIds": optional("SLACK_CHANNEL_IDS"),
	}},
	"stripe": {npm: "@stripe/mcp", bin: "mcp", keys: map[string]key{"secretKey": required("STRIPE_SECRET_KEY")}},
	"tavily": {npm: "tavily-mcp", bin: "tavily-mcp", keys: map[string]key{"apiKey": required("TAVILY_API_KEY")}},
}

// Names lists the servers of the catalogue.
func Names() []string { return slices.Sorted(maps.Keys(catalogue)) }

// Describe is the catalogue for people, a line for each server.
func Describe() []string {
	var lines []string
	for _, name := range Names() {
		s := catalogue[name]
		lines = append(lines, fmt.Sprintf("%-20s %-45s keys: %s", name, s.npm+s.pypi, s.describe()))
	}
	return lines
}
