# SPDX-License-Identifier: Apache-2.0

.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := build/venv/bin
PYTEST := $(VENV)/python -m pytest
# A sanitizer's shadow memory has fixed addresses, which a random layout may already use.
FIXED_LAYOUT := setarch $(shell uname -m) --addr-no-randomize

## Set up this machine, run a cluster on it, measure it, and leave a report
demo: setup
	$(VENV)/nearmetal demo

# What keeps one core busy at most: daemons that wait for each other, and programs of one thread.
LIGHT := $(wildcard $(addprefix tests/system/test_,slurm_*.py vsphere_*.py openstack_*.py provision_*.py site_build.py study_page.py study_arms.py \
	image_build.py local_cluster.py local_faults.py))
# Tests that share nothing run side by side.
SIDE_BY_SIDE := -n 2

## Every check that needs no cluster: lint, C tests with sanitizers, fuzzers, Python tests
test: setup lint test-c test-fuzz-briefly test-python

## A minute of every fuzzer; `make test` gives each its corpus and seconds
test-fuzz: setup
	FUZZ_SECONDS=60 tools/setup/c_build.sh fuzz
	$(VENV)/meson test -C build/c-fuzz --no-rebuild --print-errorlogs --suite fuzz

test-fuzz-briefly: setup
	tools/setup/c_build.sh fuzz
	$(VENV)/meson test -C build/c-fuzz --no-rebuild --print-errorlogs --suite fuzz

## Real MPIs on real isolated nodes and in real virtual machines on this machine
test-system: setup-system
	$(PYTEST) tests/system -m "not full" --continue-on-collection-errors --junitxml=build/log/junit/system.xml

# The image that virtual machines boot; they build it where it is missing, and wait for it.
image: setup-vm
	$(VENV)/nearmetal image build --cache build/image-cache

# The two halves of test-system, for continuous integration, which has work to run beside the first.
test-system-light: setup-system
	$(PYTEST) $(LIGHT) -m "not full" --continue-on-collection-errors --junitxml=build/log/junit/system-light.xml

test-system-heavy: setup-system
	$(PYTEST) tests/system $(LIGHT:%=--ignore=%) -m "not full" --continue-on-collection-errors --junitxml=build/log/junit/system-heavy.xml

## Every death at every fault point; `make test` takes a sample
test-faults: setup
	tools/setup/c_build.sh faults
	$(VENV)/meson test -C build/c-faults --no-rebuild --print-errorlogs --suite all-faults

## The long tests: a minute of every fuzzer, the whole walks, every machine
test-full: test-fuzz test-faults
	@tools/setup/setup.sh --vm --vsphere --openstack --study --slurm --containers --apps
	$(PYTEST) tests/system tests/python -m full --continue-on-collection-errors --junitxml=build/log/junit/full.xml

## Every promise of speed beside limits and peers, on two cores: benchmarks/out (minutes)
benchmarks: setup
	$(VENV)/python -m benchmarks.promises $(FIGURES)

## Source, wheel, Debian packages and RPMs, and what is in them: build/packages
packages: setup-packages
	tools/package/packages.sh build/packages

## The packages, built twice, checked, and installed on bare Debian 12 and 13 (minutes; network)
test-packages: packages
	$(PYTEST) tests/packages --junitxml=build/log/junit/packages.xml

## The documentation as a site without network: build/site/index.html
site: setup-site
	$(VENV)/sphinx-build --quiet --fail-on-warning --keep-going -c tools/site -d build/site-cache . build/site

## Record the demo of the documentation on this machine: docs/images/demo.svg (minutes)
recording: setup-site
	PATH="$(CURDIR)/$(VENV):$$PATH" $(VENV)/python tools/site/record.py docs/images/demo.svg nearmetal demo

## Layers, formats, types, licences, wording
lint: setup
	$(PYTEST) tests/lint $(SIDE_BY_SIDE) --junitxml=build/log/junit/lint.xml

## Install what is missing and build the C code; seconds when nothing is
setup:
	@tools/setup/setup.sh

## What virtual machines need, besides
setup-vm:
	@tools/setup/setup.sh --vm

## The simulated vCenter that tests of vSphere run against
setup-vsphere:
	@tools/setup/setup.sh --vsphere

## The OpenStack services that tests of OpenStack run against
setup-openstack:
	@tools/setup/setup.sh --openstack

## What jobs under a real Slurm need, besides
setup-slurm:
	@tools/setup/setup.sh --slurm

## What packages are built and tested with
setup-packages:
	@tools/setup/setup.sh --packages

## What builds the documentation site
setup-site:
	@tools/setup/setup.sh --site

## What the system tests need, besides: virtual machines, a vCenter, OpenStack, Slurm, engines, a browser, benchmarks, the site
setup-system:
	@tools/setup/setup.sh --vm --vsphere --openstack --study --slurm --containers --site

## The same as setup
build: setup

test-c: setup
	$(VENV)/meson test -C build/c --no-rebuild --print-errorlogs --suite unit
	tools/setup/c_build.sh asan
	$(VENV)/meson test -C build/c-asan --no-rebuild --print-errorlogs --suite unit
	tools/setup/c_build.sh tsan
	$(FIXED_LAYOUT) $(VENV)/meson test -C build/c-tsan --no-rebuild --print-errorlogs --suite ring --suite pool --suite session --suite threads
	tools/setup/c_build.sh faults
	$(VENV)/meson test -C build/c-faults --no-rebuild --print-errorlogs --suite faults

test-python: setup
	$(PYTEST) tests/python $(SIDE_BY_SIDE) -m "not full" --junitxml=build/log/junit/python.xml

## This list
help:
	@awk '/^## / { text = substr($$0, 4); next } /^[a-z-]+:/ && text { sub(/:.*/, ""); printf "make %-12s %s\n", $$0, text; text = "" } ! /^## / { text = "" }' $(MAKEFILE_LIST)

.PHONY: site recording setup-site packages test-packages setup-packages demo benchmarks test test-fuzz test-fuzz-briefly test-faults test-system image test-system-light test-system-heavy test-full lint setup setup-vm setup-vsphere setup-openstack setup-slurm setup-system build test-c test-python help
