#!/bin/sh
# Makes the secrets that docker-compose.yml asks for, each its own, in the file named (.env in the repository's root).
# What is stated there stays as it is: the pepper and the databases' passwords must not change under their data.
set -eu
file=${1:?"usage: $0 FILE"}

umask 077
touch "$file"
chmod 600 "$file"
for name in POSTGRES_PASSWORD POSTGRES_MONITOR_PASSWORD REDIS_PASSWORD CLICKHOUSE_PASSWORD GRAFANA_CLICKHOUSE_PASSWORD \
    GRAFANA_PASSWORD KEY_PEPPER; do
    if ! grep -q "^$name=." "$file"; then
        # Hexadecimal: a URL takes it as it is.
        secret=$(od -An -v -N 32 -t x1 /dev/urandom | tr -d ' \n')
        printf '%s=%s\n' "$name" "$secret" >>"$file"
        echo "$file: made $name"
    fi
done
