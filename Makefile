# Orrery's front door, over CMake: `make help` says what it offers.  Everything is built in $(BUILD) and its sisters;
# what is missing on a Debian machine is installed first by .ci/packages, which names it.
BUILD      ?= build
BUILD_TYPE ?= Release
PREFIX     ?= /usr/local
DESTDIR    ?=
WERROR     ?= OFF
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
# make bench: the types of weights of the models that it makes, some 600 MB each for Q4_K
BENCH_TYPES ?= Q4_K
# and the contexts that are decoded behind: KV of 32,768 tokens takes 1.1 GB, as often as there are policies
BENCH_CONTEXTS ?= 32768
# make sanitize-address: which test programs, all if none is named
SANITIZE     ?=
# make fuzz: which targets, and how long each
FUZZ         ?= $(patsubst tests/fuzz/fuzz_%.cpp,%,$(wildcard tests/fuzz/fuzz_*.cpp))
FUZZ_SECONDS ?= 60

DEMO_MODEL = samples/models/demo-q8_0.gguf
PRODUCTS   = orrery_shared orrery_static orrery_tool orrery_chat_sample

# $(call configure,FOLDER,OPTIONS): Ninja where it is installed, unless the folder has been made by another generator.
configure = mkdir -p $(1) && cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja)) \
	-DCMAKE_INSTALL_PREFIX="$(PREFIX)" -DORRERY_WERROR=$(WERROR) $(2) $(CMAKE_ARGS) >$(1)/configure.log \
	|| { cat $(1)/configure.log; exit 1; }
# $(call build,FOLDER,TARGETS): without our own make's flags, which a generated Makefile would inherit.
build = MAKEFLAGS=--no-print-directory cmake --build $(1) -j$(JOBS) $(if $(2),--target $(2))
# The library alone is configured without tests, so that it needs none of their packages.
without_tests = -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DORRERY_TESTS=OFF)
# Sanitizers look at lightly optimised code, with its asserts.
sanitizer = -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -DCMAKE_C_FLAGS_DEBUG="-O1 -g1"
# Programs with threads or locks are tested for races; the others, of one thread, would take an hour and show nothing.
threaded = unit_base unit_cpu unit_kv unit_engine abi_contract memory_test system_test
space := $(subst ,, )
only = -R '^($(subst $(space),|,$(strip $(1))))$$'
# ThreadSanitizer's memory map may collide with randomised addresses.
unrandomised = $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: all demo test bench fuzz sanitize sanitize-address sanitize-thread install uninstall clean help

all:
	@.ci/packages check build
	@$(call configure,$(BUILD),$(without_tests))
	@$(call build,$(BUILD),$(PRODUCTS))

demo:
	@.ci/packages build
	@$(call configure,$(BUILD),$(without_tests))
	@$(call build,$(BUILD),orrery_tool)
	@$(BUILD)/orrery demo

test:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD))
	@tests/run.sh $(BUILD) $(JOBS)

# The kernels; the whole engine on the demo model; and on a model of 1.1 thousand million random weights of each BENCH_TYPES.
bench:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),orrery_tool bench_cpu bench_kv make_model)
	@echo "== kernels"; $(BUILD)/tests/bench/bench_cpu
	@echo; echo "== orrery bench, demo model"; $(BUILD)/orrery bench $(DEMO_MODEL) --prompt-tokens 512,4096
	@set -e; for type in $(BENCH_TYPES); do model=$(BUILD)/bench-$$type.gguf; \
		[ -s $$model ] || $(BUILD)/tests/bench/make_model $$type $$model; \
		echo; echo "== orrery bench, random weights"; $(BUILD)/orrery bench $$model --prompt-tokens 256 --repeat 3; \
		echo; echo "== long contexts under KV policies"; $(BUILD)/tests/bench/bench_kv $$model contexts=$(BENCH_CONTEXTS); done

fuzz:
	@.ci/packages fuzz
	@export CC=clang CXX=clang++; $(call configure,$(BUILD)-fuzz,$(sanitizer) -DORRERY_FUZZ=ON -DORRERY_SANITIZE=address -DORRERY_TOOL=OFF)
	@$(call build,$(BUILD)-fuzz,$(addprefix fuzz_,$(FUZZ)))
	@set -e; for name in $(FUZZ); do echo "== fuzz_$$name, $(FUZZ_SECONDS) s"; \
		mkdir -p $(BUILD)-fuzz/corpus/$$name; \
		dict=; [ ! -f tests/fuzz/$$name.dict ] || dict=-dict=tests/fuzz/$$name.dict; \
		$(BUILD)-fuzz/tests/fuzz/fuzz_$$name -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 -timeout=10 \
			-artifact_prefix=$(BUILD)-fuzz/ $$dict $(BUILD)-fuzz/corpus/$$name tests/fuzz/corpus/$$name; done

sanitize: sanitize-address
	@$(MAKE) --no-print-directory sanitize-thread

sanitize-address:
	@.ci/packages test
	@$(call configure,$(BUILD)-asan,$(sanitizer) -DORRERY_SANITIZE=address)
	@$(call build,$(BUILD)-asan,$(strip $(SANITIZE)))
	@UBSAN_OPTIONS=print_stacktrace=1 tests/run.sh $(BUILD)-asan $(JOBS) $(if $(strip $(SANITIZE)),$(call only,$(SANITIZE)))

sanitize-thread:
	@.ci/packages test
	@$(call configure,$(BUILD)-tsan,$(sanitizer) -DORRERY_SANITIZE=thread)
	@$(call build,$(BUILD)-tsan,$(threaded))
	@TSAN_OPTIONS=halt_on_error=1 $(unrandomised) tests/run.sh $(BUILD)-tsan $(JOBS) $(call only,$(threaded))

install: all
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD)
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# What the last `make install` wrote is listed in its manifest.
uninstall:
	@test -f $(BUILD)/install_manifest.txt || { echo "nothing was installed from $(BUILD)"; exit 1; }
	@while IFS= read -r file || [ -n "$$file" ]; do rm -fv "$(DESTDIR)$$file"; done <$(BUILD)/install_manifest.txt

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz

help:
	@echo "make                 build the library (shared and static), the tool orrery, and the sample program"
	@echo "make demo            build what is needed, and let the bundled model answer questions about a long text"
	@echo "make test            build and run every test; the last line counts them"
	@echo "make bench           measure kernels and the whole engine: BENCH_TYPES=\"$(BENCH_TYPES)\" BENCH_CONTEXTS=$(BENCH_CONTEXTS)"
	@echo "make sanitize        every test under address+undefined, then those with threads under thread sanitizer"
	@echo "                     (sanitize-address, sanitize-thread: one of the two; SANITIZE=\"unit_kv ...\": only these)"
	@echo "make fuzz            fuzz what reads files: FUZZ=\"$(FUZZ)\" FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make install         PREFIX=$(PREFIX) DESTDIR=$(DESTDIR); make uninstall takes it away"
	@echo "make clean           remove build folders"
	@echo "Variables: BUILD=$(BUILD) BUILD_TYPE=$(BUILD_TYPE) WERROR=$(WERROR) JOBS=$(JOBS) CMAKE_ARGS=$(CMAKE_ARGS)"
