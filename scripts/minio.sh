#!/usr/bin/env bash
# Builds MinIO, the S3 server of the tests, into DIRECTORY (default: /usr/local/bin). Needs Go.
# MinIO's licence is the AGPL. The tests run it as a program of its own, on the loopback interface.
set -euo pipefail

directory=${1:-/usr/local/bin}
export PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null || {
    echo "minio.sh: Go is missing: see https://go.dev/doc/install" >&2
    exit 1
}
GOBIN=$(realpath "$directory") go install github.com/minio/minio@latest
"$directory/minio" --version
