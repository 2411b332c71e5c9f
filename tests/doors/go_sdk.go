// Sends lines by OpenTelemetry's SDK for Go, over OTLP/HTTP: URL, number of lines, service.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
)

func main() {
	ctx := context.Background()
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	exporter, err := otlploghttp.New(ctx,
		otlploghttp.WithEndpointURL(os.Args[1]+"/v1/logs"),
		otlploghttp.WithCompression(otlploghttp.GzipCompression))
	check(err)
	provider := sdk.NewLoggerProvider(
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", os.Args[3]),
			attribute.String("tailrace.run.id", "42"))),
		sdk.WithProcessor(sdk.NewBatchProcessor(exporter,
			sdk.WithExportMaxBatchSize(50), sdk.WithMaxQueueSize(100000))))
	logger := provider.Logger("clients")
	for number := range count {
		var record log.Record
		record.SetBody(attribute.StringValue(fmt.Sprintf("line %d", number)))
		record.SetSeverity(log.SeverityWarn)
		logger.Emit(ctx, record)
	}
	check(provider.Shutdown(ctx))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
