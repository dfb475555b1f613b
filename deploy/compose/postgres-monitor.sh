#!/bin/sh
# Makes the role that the exporter of PostgreSQL's metrics logs in as: it reads statistics and no table. The image runs this
# when it makes its database; for one that there is already:
#   docker compose exec postgres sh /docker-entrypoint-initdb.d/monitor.sh
set -eu
# The password is read from the environment by psql itself, and so is in no list of processes.
psql -v ON_ERROR_STOP=1 -q -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'END'
\getenv password POSTGRES_MONITOR_PASSWORD
SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'monitor') AS missing \gset
\if :missing
CREATE ROLE monitor LOGIN CONNECTION LIMIT 5;
\endif
ALTER ROLE monitor PASSWORD :'password';
GRANT pg_monitor TO monitor;
END
