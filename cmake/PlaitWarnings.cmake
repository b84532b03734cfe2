# plait_options: what every target of the project is compiled with.
add_library(plait_options INTERFACE)
target_include_directories(plait_options INTERFACE ${CMAKE_SOURCE_DIR})
# missing-field-initializers is off: designated initialisers that leave defaulted members out are the house style.
# restrict is off: g++ 12 sees overlaps in every `"text" + std::string` (GCC bug 105651).
# null-dereference is off with sanitizers: with less inlining g++ 12 sees null pointers in CLI11's split().
target_compile_options(plait_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wnon-virtual-dtor
  -Woverloaded-virtual -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(PLAIT_WERROR)
  target_compile_options(plait_options INTERFACE -Werror)
endif()
if(NOT PLAIT_SANITIZE)
  target_compile_options(plait_options INTERFACE -Wnull-dereference)
else()
  target_compile_options(plait_options INTERFACE -fsanitize=${PLAIT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(plait_options INTERFACE -fsanitize=${PLAIT_SANITIZE})
endif()
