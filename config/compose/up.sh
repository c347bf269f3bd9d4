#!/usr/bin/env bash
# Builds the images, starts engine and sidecar, and stays until the engine serves. Usage: up.sh ENGINE
# ENGINE is v100 or portable; a COMPOSE_FILE of yours, in the environment or in .env, wins.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=$1

fail() { echo "up: $1" >&2; exit "${2:-1}"; }
say() { printf 'up: [%3ds] %s\n' "$SECONDS" "$1"; }

command -v docker >/dev/null || fail "Docker is not installed; wanted Docker 20.10 or newer with compose 2.24.4; install it, or use make serve"
docker compose version >/dev/null 2>&1 || fail "Docker has no compose plugin; wanted compose 2.24.4 or newer; install it"
docker info >/dev/null 2>&1 || fail "the Docker daemon does not answer to user $(id -un); start it, or join the group docker"

set_by_hand() { [ -n "${!1:-}" ] || grep -qs "^$1=." .env; } # in the environment or in .env
if ! set_by_hand COMPOSE_FILE; then
  case $engine in
    v100) export COMPOSE_FILE=compose.yaml ;;
    portable) export COMPOSE_FILE=compose.yaml:compose.portable.yaml ;;
    *) fail "there is no engine \"$engine\"; wanted v100 or portable" 2 ;;
  esac
fi
# As a variable of the container `docker inspect` would show it; compose fills a read-only container's secret from files alone.
! grep -qsE '^(export )?HF_TOKEN=.' .env || fail "HF_TOKEN in .env would be shown by docker inspect; put it into a file and its path into .env as APPLIANCE_HF_TOKEN_FILE, or export it in the shell" 2
if [ -n "${HF_TOKEN:-}" ] && ! set_by_hand APPLIANCE_HF_TOKEN_FILE; then
  # The folder keeps the machine's other users out; in the container any user id must be able to read the file. It is
  # written over in place: a container that is started again has this very file mounted.
  mkdir -p secrets && chmod go-rwx secrets
  printf '%s\n' "$HF_TOKEN" >secrets/hf_token && chmod 0644 secrets/hf_token
  export APPLIANCE_HF_TOKEN_FILE=./secrets/hf_token
  say "HF_TOKEN goes to the container as the secret file secrets/hf_token"
fi
unset HF_TOKEN
say "${COMPOSE_FILE:-the files that .env names}"

docker compose config --quiet || fail "compose refuses its files or .env, see above" 2
set_by_hand ENGINE_IMAGE || config/image/build.sh "$engine" "v100-appliance:$engine"
set_by_hand SIDECAR_IMAGE || config/image/build.sh sidecar v100-appliance:sidecar
started=$SECONDS
docker compose up --detach --no-build --quiet-pull || fail "the containers did not start, see above"

container=$(docker compose ps --all --quiet engine)
end() { # the log says why better than anything here could; uniq, for Docker has started it again meanwhile
  docker compose stop --timeout 10 engine >/dev/null 2>&1
  docker compose logs --no-log-prefix --no-color --tail 15 engine | uniq >&2
  local status
  status=$(docker inspect --format '{{.State.ExitCode}}' "$container")
  [ "$status" != 0 ] || status=1
  fail "the engine ended with status $status, its last words are above; it is stopped now" "$status"
}
reason() { # of the probe's JSON line
  sed -nE 's/.*"reason":"(([^"\\]|\\.)*)".*/\1/p' | sed 's/\\"/"/g'
}

shown=
while :; do
  state=$(docker inspect --format '{{.State.Status}} {{.RestartCount}}' "$container")
  [ "$state" = "running 0" ] || end
  if answer=$(docker exec "$container" /opt/appliance/healthchecks/ready 2>/dev/null); then break; fi
  text=$(reason <<<"$answer")
  [ "${text#phase.json}" = "$text" ] || text= # nothing has written it yet
  if [ -t 1 ]; then
    printf '\r\033[K'
    say "${text:-starting}" | cut -c "1-$(tput cols 2>/dev/null || echo 100)" | tr -d '\n'
  elif [ "${text%% for *}" != "$shown" ]; then
    shown=${text%% for *}
    [ -z "$text" ] || say "$text"
  fi
  sleep 1
done
[ ! -t 1 ] || printf '\r\033[K'

reach() { docker compose port "$1" "$2" | sed 's/^0\.0\.0\.0:/127.0.0.1:/; s/^\[::\]:/[::1]:/'; }
say "ready, $((SECONDS - started)) s after \`docker compose up\`"
echo
echo "  OpenAI API   http://$(reach engine 8000)/v1"
echo "  status       http://$(reach sidecar 8001)"
echo "  log          make logs"
echo "  end          make down"
