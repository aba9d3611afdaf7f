# The service as a static program on distroless: no shell, no package manager, no root.
# Build: docker build --build-arg VERSION="$(git describe --tags --always)" -t disclosured .

FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=devel
ENV CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-trimpath
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY client client
COPY cmd cmd
COPY daml daml
COPY internal internal
COPY migrations migrations
COPY proto proto
COPY replayguard replayguard
# An empty folder of the user's own: a volume that is mounted there first takes its owner, and `bootstrap` writes into it.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    mkdir -p /out/bootstrap && \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -ldflags "-s -w -X main.version=$VERSION" -o /out/disclosured ./cmd/disclosured

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/disclosured /disclosured
COPY --from=build --chown=65532:65532 /out/bootstrap /bootstrap
USER 65532:65532
EXPOSE 7420 7421
# Reads ops.listen as the service does, from the variables (a port set in a configuration file alone has to be set here too).
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/disclosured", "healthcheck"]
ENTRYPOINT ["/disclosured"]
CMD ["serve"]
