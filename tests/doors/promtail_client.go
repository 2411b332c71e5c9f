// Sends numbered lines by Promtail's own client: `promtail_client URL COUNT SERVICE`.
//
// Put it into cmd/promtail_client of Loki's module (3.7.8) and `go build` it there.
package main

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/go-kit/log"
	"github.com/grafana/dskit/backoff"
	"github.com/grafana/dskit/flagext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"

	"github.com/grafana/loki/v3/clients/pkg/promtail/api"
	"github.com/grafana/loki/v3/clients/pkg/promtail/client"
	"github.com/grafana/loki/v3/pkg/logproto"
)

func main() {
	u, err := url.Parse(os.Args[1] + "/loki/api/v1/push")
	if err != nil {
		panic(err)
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	cfg := client.Config{
		URL: flagext.URLValue{URL: u}, BatchWait: 200 * time.Millisecond, BatchSize: 8 * 1024,
		BackoffConfig: backoff.Config{MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second, MaxRetries: 50},
		Timeout:       5 * time.Second,
	}
	reg := prometheus.NewRegistry()
	c, err := client.New(client.NewMetrics(reg), cfg, 0, 0, false, log.NewLogfmtLogger(os.Stderr))
	if err != nil {
		panic(err)
	}
	for i := 0; i < count; i++ {
		c.Chan() <- api.Entry{
			Labels: model.LabelSet{"service_name": model.LabelValue(os.Args[3]), "tailrace_run_id": "42"},
			Entry:  logproto.Entry{Timestamp: time.Now(), Line: fmt.Sprintf("line %d", i)},
		}
	}
	c.Stop()
}
