#!/bin/sh
# Runs one scenario of this run again: reproduce.sh NAME. Without a name it lists them.
# Start it where the run was started, with resync-chaos on the path or named by RESYNC_CHAOS.
resync_chaos=${RESYNC_CHAOS:-resync-chaos}
if [ $# -eq 0 ]; then
  printf '%s\n' 'hang       controls/flag_after_send'
  printf '%s\n' 'fail       draft/finish_fails[once]'
  printf '%s\n' 'invalid    port_taken'
  printf '%s\n' 'pass       restart/engine_between_pushes'
  printf '%s\n' 'pass       session/one_failure[engine.update-ipc]'
  printf '%s\n' 'pass       session/one_failure[engine.update-nccl]'
  printf '%s\n' 'pass       session/stale'
  exit 0
fi
name=$1
shift
case "$name" in
  controls/flag_after_send) exec "$resync_chaos" run scenarios/controls/flag_after_send.yaml -k controls/flag_after_send "$@" ;;
  'draft/finish_fails[once]') exec "$resync_chaos" run scenarios/draft/finish_fails.yaml -k 'draft/finish_fails[once]' "$@" ;;
  port_taken) exec "$resync_chaos" run scenarios/port_taken.yaml -k port_taken "$@" ;;
  restart/engine_between_pushes) exec "$resync_chaos" run scenarios/restart/engine_between_pushes.yaml -k restart/engine_between_pushes "$@" ;;
  'session/one_failure[engine.update-ipc]') exec "$resync_chaos" run scenarios/session/one_failure.yaml -k 'session/one_failure[engine.update-ipc]' "$@" ;;
  'session/one_failure[engine.update-nccl]') exec "$resync_chaos" run scenarios/session/one_failure.yaml -k 'session/one_failure[engine.update-nccl]' "$@" ;;
  session/stale) exec "$resync_chaos" run scenarios/session/stale.yaml -k session/stale "$@" ;;
  *) printf 'expected a scenario of this run, found %s\n' "$name" >&2; exit 2 ;;
esac
