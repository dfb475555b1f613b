#!/bin/sh
# Starts Alertmanager with alertmanager.yml beside this file, and with the webhook ALERT_WEBHOOK_URL in each receiver, unless
# it is empty. The URL may be a secret: it goes into a file of this container's own, and into no list of processes.
set -eu
umask 077
made=${TMPDIR:-/tmp}/alertmanager.yml

case ${ALERT_WEBHOOK_URL:=} in
"") ;;
*[!A-Za-z0-9._~:/?#@!\$\&\(\)*+,\;=%-]*)
    echo "ALERT_WEBHOOK_URL is not a URL: encode what is no character of one" >&2
    exit 2
    ;;
http://* | https://*) ;;
*)
    echo "ALERT_WEBHOOK_URL is not a URL of http or https" >&2
    exit 2
    ;;
esac

export ALERT_WEBHOOK_URL
awk '
    { print }
    /^  - name: / && ENVIRON["ALERT_WEBHOOK_URL"] != "" {
        printf "    webhook_configs:\n      - url: \"%s\"\n        send_resolved: true\n", ENVIRON["ALERT_WEBHOOK_URL"]
    }
' "$(dirname "$0")/alertmanager.yml" >"$made"
unset ALERT_WEBHOOK_URL
exec "${ALERTMANAGER:-alertmanager}" --config.file="$made" "$@"
