# What every target is compiled with; shared with the cross builds of tests/cross, which have a project of their own.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
get_filename_component(wisp_root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

# Every target links this: warnings, include roots, and the arithmetic rules of kernels/CANON.md.
find_package(Threads REQUIRED)
add_library(wisp_options INTERFACE)
target_include_directories(wisp_options INTERFACE ${wisp_root} ${wisp_root}/common ${wisp_root}/kernels/include)
target_compile_options(wisp_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -ffp-contract=off
                       $<$<BOOL:${WISP_WERROR}>:-Werror>)
if(WISP_SANITIZE)
  target_compile_options(wisp_options INTERFACE -fsanitize=${WISP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(wisp_options INTERFACE -fsanitize=${WISP_SANITIZE})
endif()
if(WISP_FUZZ)
  target_compile_options(wisp_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(wisp_options INTERFACE -fsanitize=address,undefined)
endif()
target_compile_definitions(wisp_options INTERFACE WISP_VERSION="${PROJECT_VERSION}")
target_link_libraries(wisp_options INTERFACE Threads::Threads)
