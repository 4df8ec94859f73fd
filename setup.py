"""pip's build of flashrt_ros; colcon builds CMakeLists.txt instead.

pip has no notion of ROS interfaces, launch files or ``lib/<package>`` executables, so two build
steps add them:

* ``build_ext`` runs the stock rosidl generators over ``msg/`` and ``srv/`` and compiles their C
  output into the package, so that ``flashrt_ros.msg`` and ``flashrt_ros.srv`` are real ROS
  interfaces. Without generators (they are wheels for x86_64 only) it is left out, with a notice.
* ``data_files`` lay out ``share/`` and ``lib/`` below the environment's prefix as ROS has them.
  ``ros2 launch``, ``run`` and ``interface`` look there, and so does the command line, with no ROS
  tool at hand, for the default configuration.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PACKAGE = "flashrt_ros"
MESSAGES = sorted(map(str, Path("msg").glob("*.msg")))
SERVICES = sorted(map(str, Path("srv").glob("*.srv")))
INTERFACES = MESSAGES + SERVICES
INTERFACE_DEPENDENCIES = ["std_msgs", "builtin_interfaces", "service_msgs"]
SHARED_FOLDERS = ["config", "launch"]
EXECUTABLES = {  # name below lib/flashrt_ros -> module that it runs
    "policy_node": "flashrt_ros.nodes.policy_node",
    "planner_node": "flashrt_ros.nodes.planner_node",
    "sim_node": "flashrt_ros.sim.node",
    "engine": "flashrt_ros.engine.__main__",
    "planner_engine": "flashrt_ros.planner.__main__",
}
MADE = Path("build") / "ros_index"
"""Files that exist for ``data_files`` only."""

GENERATORS = [
    "rosidl_adapter",
    "rosidl_generator_c",
    "rosidl_generator_py",
    "rosidl_generator_type_description",
    "rosidl_typesupport_c",
    "rosidl_typesupport_fastrtps_c",
    "rosidl_typesupport_introspection_c",
]
FASTRTPS = "rosidl_typesupport_fastrtps_c"
INTROSPECTION = "rosidl_typesupport_introspection_c"
# rosidl_typesupport_c opens the first two by soname; the module is imported first and, naming
# them as NEEDED beside itself, has loaded them by then
LIBRARIES = [f"lib{PACKAGE}__{FASTRTPS}", f"lib{PACKAGE}__{INTROSPECTION}"]
MODULE = f"{PACKAGE}_s__rosidl_typesupport_c"


def missing_generators() -> list[str]:
    """Return the generators that this environment lacks."""
    return [name for name in GENERATORS if importlib.util.find_spec(name) is None]


class RosDistribution(Distribution):
    """A distribution whose editable install lays out ``data_files`` too."""

    def has_data(self) -> bool:
        """Answer the question that an editable install asks before it installs data."""
        return bool(self.data_files)


class BuildPackage(build_py):
    """Copy the modules; say so when the interfaces won't follow."""

    def run(self) -> None:
        """Build the modules of the package."""
        super().run()
        if missing := missing_generators():
            print(
                f"{PACKAGE}: building without flashrt_ros.msg and flashrt_ros.srv, because the "
                f"rosidl generators are not installed (missing: {', '.join(missing)}). The "
                "engine, its client and the models work without them; nodes need them.",
                file=sys.stderr,
            )


class BuildInterfaces(build_ext):
    """Generate and compile the ROS interfaces."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name the two support libraries as the dynamic linker looks for them."""
        if fullname.split(".")[-1] in LIBRARIES:
            return fullname.replace(".", "/") + ".so"
        name: str = super().get_ext_filename(fullname)  # type: ignore[no-untyped-call]
        return name

    def run(self) -> None:
        """Compile, then lay the generated modules beside the hand-written ones."""
        work = Path(self.build_temp).absolute() / "rosidl"
        shutil.rmtree(work, ignore_errors=True)  # an interface that was removed must not stay
        prefix, sources = generate(work)
        self.describe_extensions(work, prefix, sources)
        super().run()
        generated = work / "c" / PACKAGE
        root = Path() if self.inplace else Path(self.build_lib)
        for kind in ("msg", "srv"):
            target = root / PACKAGE / kind
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for module in (generated / kind).glob("*.py"):
                shutil.copy(module, target)
            described = [p for p in (generated / kind).iterdir() if p.suffix in (".idl", ".json")]
            data_files = self.distribution.data_files
            assert data_files is not None  # setup() below was given some
            data_files.append((f"share/{PACKAGE}/{kind}", sorted(map(str, described))))

    def describe_extensions(self, work: Path, prefix: Path, sources: list[list[str]]) -> None:
        """Fill in what only the generators know.

        Args:
            work: Folder of the generated files.
            prefix: Prefix of the environment that the generators come from.
            sources: C and C++ files of each extension, in the order of the extensions.
        """
        import numpy

        include = prefix / "include"
        include_dirs = [
            str(work / "c"),
            str(work / INTROSPECTION),
            str(include),
            numpy.get_include(),
            *(
                str(folder)
                for folder in sorted(include.iterdir())
                if (folder / folder.name).is_dir()
            ),
        ]
        libraries = [
            f"{package}__{kind}"
            for package in INTERFACE_DEPENDENCIES
            for kind in ("rosidl_generator_c", "rosidl_generator_py", FASTRTPS, INTROSPECTION)
        ]
        libraries += [
            "rosidl_runtime_c",
            "rosidl_typesupport_c",
            FASTRTPS,
            "rosidl_typesupport_fastrtps_cpp",
            INTROSPECTION,
            "rmw",
            "rcutils",
            "fastcdr",
        ]
        own = [library.removeprefix("lib") for library in LIBRARIES]
        for index, extension in enumerate(self.extensions):
            extension.sources = sources[index]
            extension.include_dirs = include_dirs
            extension.libraries = own[:index] + libraries
            extension.library_dirs = [f"{self.build_lib}/{PACKAGE}", str(prefix / "lib")]
            extension.runtime_library_dirs = ["$ORIGIN"]
            extension.extra_compile_args = ["-g0"]
            extension.extra_link_args = (
                [f"-Wl,-soname,{LIBRARIES[index]}.so"]
                if index < len(LIBRARIES)
                else ["-Wl,--no-as-needed", *(f"-l{library}" for library in own)]
            )


def generate(work: Path) -> tuple[Path, list[list[str]]]:
    """Run the generators.

    Args:
        work: Folder to generate into.

    Returns:
        The prefix of the environment that the generators come from, and the sources of the two
        support libraries and of the Python extension.
    """
    import rosidl_generator_c
    import rosidl_typesupport_c
    import rosidl_typesupport_fastrtps_c
    import rosidl_typesupport_introspection_c
    from rosidl_adapter.msg import convert_msg_to_idl
    from rosidl_adapter.srv import convert_srv_to_idl
    from rosidl_generator_py import generate_py
    from rosidl_generator_type_description import generate_type_hash

    prefix = Path(rosidl_generator_c.__file__).parents[4]
    share, out = prefix / "share", work / "c" / PACKAGE
    idl = [Path(name).with_suffix(".idl") for name in INTERFACES]
    for source in map(Path, INTERFACES):
        (out / source.parent).mkdir(parents=True, exist_ok=True)
        convert = convert_msg_to_idl if source.suffix == ".msg" else convert_srv_to_idl
        convert(Path.cwd(), PACKAGE, source, out / source.parent)

    def arguments(generator: str, output: Path = out, **more: object) -> str:
        """Write a generator's argument file, and the export header that it does not write."""
        for template in (share / generator / "resource").glob("*__visibility_control.h.in"):
            header = output / "msg" / template.stem
            header.parent.mkdir(parents=True, exist_ok=True)
            text = template.read_text().replace("@PROJECT_NAME_UPPER@", PACKAGE.upper())
            header.write_text(text.replace("@PROJECT_NAME@", PACKAGE))
        path = work / "arguments.json"
        path.write_text(
            json.dumps(
                {
                    "package_name": PACKAGE,
                    "output_dir": str(output),
                    "target_dependencies": [],
                    "template_dir": str(share / generator / "resource"),
                    "idl_tuples": [f"{out}:{name}" for name in idl],
                    **more,
                }
            )
        )
        return str(path)

    generate_type_hash(
        arguments(
            "rosidl_generator_type_description",
            include_paths=[f"{name}:{share / name}" for name in INTERFACE_DEPENDENCIES],
        )
    )
    fastrtps = rosidl_generator_c.generate_c(
        arguments(
            "rosidl_generator_c",
            ros_interface_files=[str(Path(name).absolute()) for name in INTERFACES],
            type_description_tuples=[f"{n}:{out / n.with_suffix('.json')}" for n in idl],
        )
    )
    fastrtps += rosidl_typesupport_fastrtps_c.generate_typesupport_fastrtps_c(arguments(FASTRTPS))
    introspection = rosidl_typesupport_introspection_c.generate_c(
        arguments(INTROSPECTION, work / INTROSPECTION / PACKAGE)
    )
    module = rosidl_typesupport_c.generate_c(
        arguments("rosidl_typesupport_c"), [FASTRTPS, INTROSPECTION]
    )
    module += generate_py(arguments("rosidl_generator_py"), ["rosidl_typesupport_c"])
    sources = [
        sorted(name for name in names if name.endswith((".c", ".cpp")))
        for names in (fastrtps, introspection, module)
    ]
    return prefix, sources


def make_interface_index() -> str:
    """Write the ament index entry by which ``ros2 interface`` finds the interfaces."""
    entry = MADE / PACKAGE
    entry.parent.mkdir(parents=True, exist_ok=True)
    idl = [str(Path(name).with_suffix(".idl")) for name in INTERFACES]
    entry.write_text("\n".join(sorted(INTERFACES + idl)))
    return str(entry)


def make_executables() -> list[str]:
    """Write the executables that launch and ``ros2 run`` look for."""
    template = Path("resource/executable.in").read_text()
    folder = MADE / "executables"
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in EXECUTABLES.items():
        path = folder / name
        path.write_text(template.replace("@MODULE@", module))
        path.chmod(0o755)
    return [str(folder / name) for name in EXECUTABLES]


def files(folder: str) -> list[str]:
    """Return the files directly in a folder."""
    return sorted(str(path) for path in Path(folder).glob("*") if path.is_file())


setup(
    packages=find_packages(
        include=[PACKAGE, f"{PACKAGE}.*"],
        exclude=[f"{PACKAGE}.msg", f"{PACKAGE}.srv"],  # build_ext makes them anew
    ),
    distclass=RosDistribution,
    cmdclass={"build_ext": BuildInterfaces, "build_py": BuildPackage},
    ext_modules=[]
    if missing_generators()
    else [Extension(f"{PACKAGE}.{name}", [], language="c++") for name in [*LIBRARIES, MODULE]],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        ("share/ament_index/resource_index/rosidl_interfaces", [make_interface_index()]),
        (f"share/{PACKAGE}", ["package.xml"]),
        (f"share/{PACKAGE}/msg", MESSAGES),
        (f"share/{PACKAGE}/srv", SERVICES),
        *((f"share/{PACKAGE}/{folder}", files(folder)) for folder in SHARED_FOLDERS),
        (f"lib/{PACKAGE}", make_executables()),
    ],
)
