# Writes the JSON files of data/ into a source file, so that `plait` knows them by name wherever it is installed.
#
#   plait_named_data(<target> KIND <kind> FOLDER <folder of data/> NAMES <names without .json>)  for each kind, then
#   plait_write_named_data(<target>)
function(plait_named_data target)
  cmake_parse_arguments(ARG "" "KIND;FOLDER" "NAMES" ${ARGN})
  foreach(name IN LISTS ARG_NAMES)
    set(file ${CMAKE_SOURCE_DIR}/data/${ARG_FOLDER}/${name}.json)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    set_property(TARGET ${target} APPEND_STRING PROPERTY PLAIT_NAMED_DATA
      "    {\"${ARG_KIND}\", \"${name}\", R\"json(${text})json\"},\n")
  endforeach()
endfunction()

function(plait_write_named_data target)
  get_target_property(entries ${target} PLAIT_NAMED_DATA)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/named_data_files.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT [[
#include "plait/sim/named_data.h"

namespace plait {

std::span<const NamedData> named_data() {
  static constexpr NamedData kData[] = {
@entries@  };
  return kData;
}

}  // namespace plait
]] @ONLY)
  target_sources(${target} PRIVATE ${source})
endfunction()
